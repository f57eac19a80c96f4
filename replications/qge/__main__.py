"""QGE's tables: python -m replications.qge --data FOLDER --out FOLDER [--device cuda] [--quick]"""

import sys

from replications.common import AVILA, CIFAR_TRAIN, MNIST_TRAIN, Part, main

TABULAR = ("-m", "replications.qge.tabular", "--out", "{out}/%s", "--set")
SAMPLED = ("-m", "replications.qge.sampled", "--out", "{out}/%s", "--photos", "{data}", "--only")
ONE = ("--inputs", "1", "--draws", "1", "--models", "trained")
FEW = ("--inputs", "2", "--rankings", "20", "--epochs", "3", "--rows", "1500")
TEXT = ("trec/TREC.train.all", "trec/TREC.test.all", "sms_spam/SMSSpamCollection")
PHOTOS = ("efficientnet.npz",)


def part(
    name: str, command: tuple[str, ...], needs: tuple[str, ...], quick: tuple[str, ...], in_quick: bool = True
) -> Part:
    """A part that writes into a folder of its own, since its program names its files itself."""
    return Part(name, (*(word.replace("%s", name) for word in command), name), needs, quick, in_quick)


PARTS = (
    part("glass", TABULAR, (), ONE, False),
    part("wine9", TABULAR, (), ONE),
    part("avila", TABULAR, AVILA, ONE, False),
    Part(
        "ties",
        ("-m", "replications.qge.ties", "--out", "{out}/ties"),
        (*MNIST_TRAIN, *CIFAR_TRAIN),
        ("--inputs", "2"),
        False,
    ),
    part("embedded", SAMPLED, (), FEW),
    part("tables", SAMPLED, (), FEW),
    part("faithfulness", SAMPLED, (), FEW),
    part("mnist", SAMPLED, MNIST_TRAIN, FEW),
    part("localisation", SAMPLED, MNIST_TRAIN, FEW),
    part("text", SAMPLED, TEXT, FEW),
    part("cifar", SAMPLED, CIFAR_TRAIN, FEW, False),
    part("imagenet", SAMPLED, PHOTOS, FEW, False),
    part("photos", SAMPLED, PHOTOS, FEW, False),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS, takes_device=True))
