"""Embedded tasks: real models on real data that load offline."""
