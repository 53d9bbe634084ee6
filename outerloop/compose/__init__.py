"""Model x method x suites + submission to a pipeline configuration. Reads TOML fragments and nothing else."""
