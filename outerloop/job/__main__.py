"""Entry point of `python -I -m outerloop.job <slot> <attempt>`."""

import sys

from outerloop.job.wrapper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
