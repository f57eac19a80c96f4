"""QGE's tables: python -m replications.qge --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import AVILA, CIFAR, MNIST, Part, main

TABULAR = ("-m", "replications.qge.tabular", "--out", "{out}/%s", "--set")
SAMPLED = ("-m", "replications.qge.sampled", "--out", "{out}/%s", "--only")
FEW = ("--inputs", "2", "--rankings", "40", "--few", "20")


def part(
    name: str, command: tuple[str, ...], needs: tuple[str, ...], quick: tuple[str, ...], in_quick: bool = True
) -> Part:
    """A part that writes into a folder of its own, since its program names its files itself."""
    return Part(name, (*(word.replace("%s", name) for word in command), name), needs, quick, in_quick)


PARTS = (
    part("wine9", TABULAR, (), ("--inputs", "1", "--draws", "1", "--models", "mlp")),
    part("avila", TABULAR, AVILA, ("--inputs", "1", "--draws", "1", "--models", "mlp"), False),
    part("embedded", SAMPLED, (), FEW),
    part("faithfulness", SAMPLED, (), FEW),
    part("mnist", SAMPLED, MNIST, FEW),
    part("localisation", SAMPLED, MNIST, FEW),
    part("cifar", SAMPLED, CIFAR, FEW, False),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
