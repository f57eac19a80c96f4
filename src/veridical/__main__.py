"""`python -m veridical` is the command line."""

from veridical.cli import main

main()
