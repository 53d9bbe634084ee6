"""Identity (determinants to digest), the slot directory, reading results. Knows no database and no cluster."""
