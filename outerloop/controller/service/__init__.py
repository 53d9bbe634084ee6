"""Service deployments: researchers' accounts submit, one service account dispatches.

What for: a submitter leaves a file in the spool, whose owner is the submitter; the service's tick checks it, makes the
run, and writes what the submitter may know into a folder that only the submitter knows. Submitters need no database
credential and no right on slots, record or mirrors. May be imported from the command line and the tick; knows nothing
of dispatching.
"""
