"""outerloop: from a candidate to a verdict on a Slurm cluster. Kept empty of imports: jobs start through it."""

__version__ = "0.1.0"
