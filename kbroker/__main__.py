"""`python -m kbroker`: the command line without the installed script."""

from kbroker.cli import main

main()
