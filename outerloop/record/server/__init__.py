"""The parts of the embedded Postgres: programs, places, processes. Everybody else uses outerloop.record.embedded."""
