"""What the `outerloop` script starts: the command line, with Ctrl-C answered from the first import on.

Covered: the time before and after click's own handling, in which Python would print a traceback. Not covered: commands
(outerloop.cli). Standard library only, and little of it, because nothing here may take time itself.
"""

from __future__ import annotations

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130
"""As a shell says of a program that SIGINT ended: 128 and the signal's number. The same as ExitCode.INTERRUPTED."""


def main() -> None:
    """Entry point of the console script and of `python -m outerloop.cli`."""
    begun = False
    try:
        from outerloop.cli import run

        begun = True
        run()
    except KeyboardInterrupt:
        if not begun:
            print("\nError: interrupted before anything was done", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
