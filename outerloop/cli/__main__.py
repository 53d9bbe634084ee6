"""`python -m outerloop.cli`, which wake jobs use: it needs no script in PATH."""

from outerloop.cli import main

main()
