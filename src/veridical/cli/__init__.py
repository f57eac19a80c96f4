"""The command line: thin. It parses, calls the library, and prints."""

from veridical.cli import audit, doctor, replicate, report, study, systems  # noqa: F401 (each adds its commands)
from veridical.cli.app import main

__all__ = ["main"]
