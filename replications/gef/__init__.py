"""GEF: the tables of the paper, made again."""
