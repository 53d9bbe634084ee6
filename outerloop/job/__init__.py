"""Runs on the compute node: claims an attempt, executes its work, writes one result.

Standard library only: no database, no third-party import, no other room. `layout` is shared with the readers of a
slot and `script` with whoever submits; the rest is the program `python -I -m outerloop.job <slot> <attempt>`.
It must not know what a result means: that is decided from files, elsewhere.
"""
