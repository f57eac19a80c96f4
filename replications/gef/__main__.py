"""GEF's tables: python -m replications.gef --data FOLDER --out FOLDER [--quick]"""

import sys

from replications.common import AVILA, MNIST_TRAIN, Part, main

ADULT = ("adult/adult.data", "adult/adult.test", "tabular_ann_weights/ann_adult.pt")
RUN = ("-m", "replications.gef.run", "--out", "{out}", "--only")
PARTS = (
    Part("vision", (*RUN, "vision"), MNIST_TRAIN, ("--samples", "16")),
    Part("forms", (*RUN, "forms"), MNIST_TRAIN, ("--samples", "8"), in_quick=False),
    Part("controls", (*RUN, "controls"), MNIST_TRAIN, ("--samples", "8")),
    Part("global", (*RUN, "global"), MNIST_TRAIN, ("--samples", "16"), in_quick=False),
    Part(
        "tabular",
        ("-m", "replications.gef.tabular", "--out", "{out}"),
        AVILA,
        ("--samples", "32", "--only", "Avila MLP"),
    ),
    Part(
        "iso_sigma",
        ("-m", "replications.gef.iso_sigma", "--out", "{out}", "--only", "MNIST", "Avila"),
        (*MNIST_TRAIN, *AVILA),
        ("--samples", "4", "--draws", "5", "--seeds", "1"),
    ),
    Part(
        "iso_sigma, networks",
        ("-m", "replications.gef.iso_sigma", "--out", "{out}", "--only", "Eff", "MiniLM"),
        ("efficientnet.npz", "minilm.npz"),
        ("--samples", "2", "--draws", "5", "--seeds", "1"),
        in_quick=False,
    ),
    Part(
        "sms",
        ("-m", "replications.gef.sms", "--out", "{out}"),
        ("sms_spam/SMSSpamCollection",),
        ("--samples", "8", "--shap-samples", "1", "--draws", "1"),
        in_quick=False,
    ),
    Part(
        "efficientnet",
        ("-m", "replications.gef.efficientnet", "--data", "{data}", "--out", "{out}"),
        ("efficientnet.npz",),
        ("--samples", "2", "--draws", "1"),
        in_quick=False,
    ),
    Part(
        "pictures",
        ("-m", "replications.gef.pictures", "--data", "{data}", "--out", "{out}"),
        ("efficientnet.npz",),
        ("--steps", "5", "--classes", "2", "--draws", "1"),
        in_quick=False,
    ),
    Part(
        "llm",
        ("-m", "replications.gef.llm.study", "--out", "{out}"),
        ("sms_spam/SMSSpamCollection",),
        ("--samples", "2", "--new-tokens", "8"),
        in_quick=False,
    ),
    Part(
        "assumptions",
        (*RUN, "assumptions"),
        (*MNIST_TRAIN, *AVILA, *ADULT),
        ("--samples", "8"),
        in_quick=False,
    ),
    Part("noises", (*RUN, "noises"), (*MNIST_TRAIN, *AVILA, *ADULT), ("--samples", "8"), in_quick=False),
    Part("path", ("-m", "replications.gef.path", "--out", "{out}"), (), ("--seeds", "2", "--only", "wine")),
    Part("ablation", (*RUN, "ablation"), (*MNIST_TRAIN, *AVILA, *ADULT), ("--samples", "8"), in_quick=False),
)

if __name__ == "__main__":
    sys.exit(main(__doc__ or "", PARTS))
