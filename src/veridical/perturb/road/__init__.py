"""ROAD's noisy linear imputation: a multigrid solver, and the same in one CUDA kernel."""
