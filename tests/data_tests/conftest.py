"""Models and data on disk, as a user would have them."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

NET = """
import torch
from pathlib import Path

Path({witness!r}).write_text("ran")

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

def wide():
    return torch.nn.Linear(9, 3)

"""


class Brightness(torch.nn.Module):
    """Two classes: dark and light."""

    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return torch.stack([-mean, mean], 1)


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


@pytest.fixture
def net(tmp_path):
    """A network: its weights in a file, and the code that builds it in another."""
    torch.manual_seed(0)
    model, witness = network(), tmp_path / "ran"
    (tmp_path / "own_net.py").write_text(NET.format(witness=str(witness)))
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    torch.save(model.state_dict(), tmp_path / "net.pt")
    return model, tmp_path, witness


@pytest.fixture
def arrays(tmp_path):
    """Rows whose class is their largest of the first three columns."""
    rng = np.random.default_rng(1)
    x, train = rng.normal(size=(40, 4)).astype(np.float32), rng.normal(size=(30, 4)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1), "train": train, "train_labels": train[:, :3].argmax(1)}


@pytest.fixture
def shop():
    """A table with a category and a label that follows from it."""
    rng = np.random.default_rng(1)
    colour = rng.choice(["red", "green", "blue"], 120)
    size = rng.normal(size=120)
    bought = np.where(size + (colour == "red") > 0.3, "yes", "no")
    return pd.DataFrame({"size": size, "colour": colour, "age": rng.integers(18, 80, 120), "bought": bought})


@pytest.fixture
def photos(tmp_path):
    """Dark and light images in two subfolders."""
    folder = tmp_path / "photos"
    for name, level in (("dark", 40), ("light", 210)):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            noise = np.random.default_rng(number).integers(-30, 30, (20 + number, 24, 3))
            Image.fromarray((level + noise).astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder
