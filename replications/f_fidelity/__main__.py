"""F-Fidelity's tables: python -m replications.f_fidelity --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import CIFAR_TRAIN, MNIST_TRAIN, Part, main

HERE = "replications/f_fidelity"
SMALL = ("--per-class", "4", "--repeats", "1", "--draws", "4", "--epochs", "1", "--stages", "robustness")
PARTS = (
    Part("size", (f"{HERE}/size.py", "--out", "{out}/size.json"), (), ("--samples", "30", "--shares", "0.2")),
    Part(
        "judges",
        (f"{HERE}/judges.py", "--out", "{out}/judges.jsonl"),
        (),
        ("--seeds", "1", "--samples", "16", "--sets", "wine columns"),
    ),
    Part("mnist", (f"{HERE}/run.py", "mnist", "--out", "{out}/mnist.json"), MNIST_TRAIN, SMALL),
    Part("cifar", (f"{HERE}/run.py", "cifar", "--out", "{out}/cifar.json"), CIFAR_TRAIN, SMALL, False),
    *(
        Part(
            name,
            (f"{HERE}/run.py", name, "--out", f"{{out}}/{name}.json"),
            (f"sequences/{name}.pt",),
            SMALL,
            False,
        )
        for name in ("vowels_lstm", "vowels_cnn", "snippets_lstm", "snippets_transformer")
    ),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
