"""What the documentation site makes of the code: pages of metrics and explainers, notebooks, mathematics."""
