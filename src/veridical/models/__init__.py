"""Everything that runs a model: the predictor, adapters for other frameworks, noisy copies."""
