"""Embedded tasks: real models on real data that load offline, and synthetic ones whose answer is known."""

from veridical.tasks.catalogue import load, names

__all__ = ["load", "names"]
