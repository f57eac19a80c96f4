"""One engine that follows a model while it runs, for every method that changes what goes back through it.

`follow` sees each torch operation on what depends on the explained input and asks a rule for it: relevance
(LRP), differences to a baseline (DeepLIFT) or changed rectifiers (guided backpropagation, deconvolution).
"""
