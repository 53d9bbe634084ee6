"""Runs on the compute node. Standard library only: no database, no third-party import."""
