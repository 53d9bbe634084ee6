"""Postgres: tables, transactions, leases with fencing, the append-only ledger."""
