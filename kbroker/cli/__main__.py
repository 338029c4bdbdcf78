"""`python -m kbroker.cli`: the command line without the installed script."""

from kbroker.cli import main

main()
