"""Switching features off: what fills their place, which of them, and the one loop that evaluates."""
