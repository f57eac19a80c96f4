"""SURF's tables: python -m replications.surf --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import CIFAR_TRAIN, MNIST_TRAIN, Part, main

RUN = ("-m", "replications.surf.run", "--out", "{out}")
SMALL = ("--quick",)
CURVES = ("-m", "replications.surf.curves", "--out", "{out}")
FEW = ("--sizes", "400", "100")
PARTS = (
    Part("diabetes", (*RUN, "diabetes"), (), SMALL),
    Part("attributes", (*RUN, "attributes"), (), SMALL, in_quick=False),
    Part("mnist", (*RUN, "mnist"), MNIST_TRAIN, SMALL),
    Part("cifar", (*RUN, "cifar"), CIFAR_TRAIN, SMALL, in_quick=False),
    Part("curves_mnist", (*CURVES, "mnist"), MNIST_TRAIN, FEW, in_quick=False),
    Part("curves_cifar", (*CURVES, "cifar"), CIFAR_TRAIN, FEW, in_quick=False),
    Part("vgg", (*RUN, "vgg"), CIFAR_TRAIN, SMALL, in_quick=False),
    Part("trec", (*RUN, "trec"), ("surf/trec.npz",), SMALL, in_quick=False),
    Part("photos", (*RUN, "photos"), ("surf/photos.npz", "surf/photo_parts.npz"), SMALL, in_quick=False),
    Part("hundred", (*RUN, "hundred"), ("surf/hundred.npz",), SMALL, in_quick=False),
    Part("shipped", (*RUN, "cnn", "vit", "slant"), (), SMALL, in_quick=False),
    Part("segments", (*RUN, "segments"), (*CIFAR_TRAIN, "surf/segments.npz"), SMALL, in_quick=False),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
