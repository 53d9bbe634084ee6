"""PURE. Which measures a climb needs and who wins. Imports nothing that touches a disk, database or process."""
