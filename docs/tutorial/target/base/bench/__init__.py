"""How the solvers are measured. No candidate may change this package or `data/`."""
