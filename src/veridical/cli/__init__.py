"""The command line: thin. It parses, calls the library, and prints."""

from veridical.cli.app import main

__all__ = ["main"]
