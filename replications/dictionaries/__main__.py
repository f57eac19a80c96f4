"""Metrics of dictionaries: python -m replications.dictionaries --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import Part, main

PLANTED = ("-m", "replications.dictionaries.planted", "--out", "{out}")
RESIDUAL = (
    "-m",
    "replications.dictionaries.residual",
    "--out",
    "{out}",
    "--texts",
    "{data}/dictionaries/texts.npz",
)
PARTS = (
    Part("planted", PLANTED, (), ("--quick",)),
    Part("residual", RESIDUAL, ("dictionaries/texts.npz",), ("--quick",), in_quick=False),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
