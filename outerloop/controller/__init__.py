"""advance(run), submit, wake, tick: the only place where the parts meet."""
