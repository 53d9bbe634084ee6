"""Code that both solvers use. A candidate may change it, and then the sibling benchmark is measured too."""
