"""The Compute protocol and its backends: slurm (command line) and local (submitit)."""
