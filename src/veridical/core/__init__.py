"""Keyed random numbers: every draw depends on its key alone, never on a global generator."""
