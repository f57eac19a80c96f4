"""Meta-evaluation: which metric deserves to be believed, for this model and these explainers?"""
