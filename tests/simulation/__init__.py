"""Controllers on a real Postgres with a simulated cluster and a clock that moves when a schedule says so."""
