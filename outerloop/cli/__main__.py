"""`python -m outerloop.cli`, which wake jobs use: it needs no script in PATH."""

from outerloop.start import main

main()
