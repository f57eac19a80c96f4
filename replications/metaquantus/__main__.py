"""MetaQuantus' tables: python -m replications.metaquantus --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import CIFAR_TRAIN, MNIST, MNIST_TRAIN, Part, main

RUN = ("-m", "replications.metaquantus.run", "--out", "{out}")
COLOURED = (*MNIST_TRAIN, *CIFAR_TRAIN)
SMALL = ("--samples", "24", "--draws", "1", "--iterations", "1", "--neighbours", "2", "--quick")
PARTS = (
    Part("tables", RUN, (*MNIST, "mnist/metaquantus_mnist_test_set.npy"), SMALL),
    *(Part(name, (*RUN, "--table", name), COLOURED, SMALL, False) for name in ("5", "networks", "grid")),
    *(Part(name, (*RUN, "--table", name), MNIST, SMALL, False) for name in ("gef-a1", "gef-a2", "qge-5")),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS, takes_device=True))
