"""`python -m tamis` is `tamis`."""

from tamis.cli import main

main()
