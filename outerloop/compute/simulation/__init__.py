"""What a simulated cluster is made of: its site, its jobs, its scheduler, its faults, and planning with it.

May be imported from: compute/simulated.py, the command line and tests. Must not know: the record, slots, the job.
"""
