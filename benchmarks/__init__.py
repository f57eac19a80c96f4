"""Speed as a ratio in one run: against the bare model evaluations, and a peer where one is installed."""
