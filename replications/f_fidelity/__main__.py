"""F-Fidelity's tables: python -m replications.f_fidelity --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import CIFAR_TRAIN, MNIST_TRAIN, Part, main

HERE = "replications.f_fidelity"
SMALL = ("--per-class", "4", "--repeats", "1", "--draws", "4", "--epochs", "1", "--stages", "robustness")
PARTS = (
    Part(
        "size", ("-m", f"{HERE}.size", "--out", "{out}/size.json"), (), ("--samples", "30", "--shares", "0.2")
    ),
    Part(
        "judges",
        ("-m", f"{HERE}.judges", "--out", "{out}/judges.jsonl"),
        (),
        ("--seeds", "1", "--samples", "16", "--sets", "wine columns"),
    ),
    Part("mnist", ("-m", f"{HERE}.run", "mnist", "--out", "{out}/mnist.json"), MNIST_TRAIN, SMALL),
    Part("cifar", ("-m", f"{HERE}.run", "cifar", "--out", "{out}/cifar.json"), CIFAR_TRAIN, SMALL, False),
    *(
        Part(
            name,
            ("-m", f"{HERE}.run", name, "--out", f"{{out}}/{name}.json"),
            (f"sequences/{name}.pt",),
            SMALL,
            False,
        )
        for name in ("vowels_lstm", "vowels_cnn", "snippets_lstm", "snippets_transformer")
    ),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
