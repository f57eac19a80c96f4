"""What the paper prints: Table 3 (MNIST) and Table 2 (sanity), rows as (MC, IAC_NR, IAC_AR, IEC_NR, IEC_AR).

The text of Table 3 that we have is shifted by a row in places and some rows are lost. A row stands here only
if its four entries average to its MC; means over the tests are those of the table.
"""

NAN = float("nan")
LOST = (NAN, NAN, NAN, NAN, NAN)

TABLE_3 = {
    "sparseness": {
        "mpt": (0.640, 0.209, 0.946, 0.837, 0.569),
        "ipt": (0.476, 0.929, 0.053, 0.840, 0.084),
        "mean": 0.558,
    },
    "complexity": {"mpt": LOST, "ipt": LOST, "mean": 0.521},
    "faithfulness_correlation": {
        "mpt": (0.543, 0.500, 0.890, 0.190, 0.594),
        "ipt": LOST,
        "mean": 0.540,
    },
    "pixel_flipping": {
        "mpt": (0.609, 0.547, 0.963, 0.299, 0.626),
        "ipt": (0.644, 0.485, 1.000, 0.294, 0.796),
        "mean": 0.626,
    },
    "pointing_game": {
        "mpt": (0.672, 0.977, 0.607, 0.996, 0.108),
        "ipt": (0.500, 1.000, 0.000, 1.000, 0.000),
        "mean": 0.586,
    },
    "relevance_mass_accuracy": {
        "mpt": (0.613, 0.258, 0.793, 0.846, 0.553),
        "ipt": (0.491, 0.940, 0.071, 0.902, 0.051),
        "mean": 0.552,
    },
    "random_logit": {"mpt": (0.712, 0.360, 0.969, 0.937, 0.581), "ipt": LOST, "mean": 0.666},
    "mprt": {
        "mpt": (0.624, 0.264, 0.959, 0.764, 0.510),
        "ipt": (0.542, 0.250, 0.806, 0.647, 0.463),
        "mean": 0.583,
    },
    "max_sensitivity": {
        "mpt": (0.754, 0.547, 0.938, 0.804, 0.726),
        "ipt": (0.545, 0.361, 1.000, 0.806, 0.011),
        "mean": 0.649,
    },
    "local_lipschitz": {
        "mpt": (0.726, 0.484, 0.935, 0.736, 0.750),
        "ipt": (0.756, 0.519, 0.974, 0.740, 0.789),
        "mean": 0.741,
    },
}

TABLE_2 = {
    "different": {
        "ipt": (0.015, 0.983, 0.248, 0.0),
        "mpt": (0.014, 0.973, 0.248, 0.0),
        "expected": (0.0, 1.0, "1/L", 0.0),
    },
    "same": {"ipt": (1.0, 0.0, 1.0, 0.0), "mpt": (1.0, 0.0, 1.0, 0.0), "expected": (1.0, 0.0, 1.0, 0.0)},
}

# MC, mean of the tests, MNIST row of the GEF paper's Tables A.1 and A.2
GEF_A1 = {"GEF": 0.75, "Fast-GEF": 0.74, "PF": 0.61, "FC": 0.63, "RP": 0.59}
GEF_A2 = {"MPRT": 0.63, "sMPRT": 0.66, "eMPRT": 0.76, "RIS": 0.73, "ROS": 0.70, "RRS": 0.74}

# the QGE paper's Table 5: on fMNIST, the first of its two blocks; it has no MNIST
QGE_5 = {
    "QRAND-1 PF": 0.579,
    "QRAND-1 RRA": 0.599,
    "QRAND-1 RMA": 0.585,
    "QGE PF": 0.801,
    "QGE RRA": 0.598,
    "QGE RMA": 0.587,
}
