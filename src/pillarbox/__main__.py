"""`python -m pillarbox` is the command `pillarbox`."""

from pillarbox.cli import main

main()
