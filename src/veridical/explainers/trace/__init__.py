"""One engine that traces a model while it runs, for every method that changes what is passed back through it.

The tracer sees each torch operation on what depends on the explained input and applies a rule to it:
relevance (LRP), differences to a baseline (DeepLIFT) or changed rectifiers (guided backpropagation,
deconvolution). Every run is traced anew, so the map belongs to the way that the model really took.
"""
