"""Reports: HTML that reads results only."""
