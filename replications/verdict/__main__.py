"""What an audit's verdict rests on, tried out: python -m replications.verdict --out FOLDER [--quick]

Its statistics on simulated units (betting, groups), and whole audits of independent worlds in
which explainers and models lie (lies). Nothing is downloaded.
"""

import sys

from replications.common import Part, main

PARTS = (
    Part("betting", ("-m", "replications.verdict.betting", "--out", "{out}"), quick=("--repeats", "300")),
    Part("groups", ("-m", "replications.verdict.groups", "--out", "{out}"), quick=("--repeats", "10")),
    Part(
        "lies",
        (
            *("-m", "replications.verdict.lies", "--out", "{out}"),
            *("--kinds", "lies", "equal", "scaffold", "--reference", "500"),
        ),
        quick=(
            *("--families", "linear", "--seeds", "1", "--samples", "24"),
            *("--effort", "glance", "--reference", "0"),
        ),
    ),
    Part(
        "stability",
        ("-m", "replications.verdict.stability", "--out", "{out}"),
        quick=("--seeds", "1", "--efforts", "glance", "--tasks", "6"),
    ),
    Part("near", ("-m", "replications.verdict.near", "--out", "{out}"), quick=("--families", "linear")),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
