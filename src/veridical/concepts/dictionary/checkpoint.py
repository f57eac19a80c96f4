"""A training run on disk: the tensors that move, and of which run they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from veridical.concepts.dictionary.recipes import Recipe
from veridical.core.key import Key
from veridical.errors import FormatError
from veridical.values.sealed import put


@dataclass(frozen=True)
class Checkpoint:
    """One file that always holds a whole state: a new one takes the place of the old at once."""

    path: Path
    recipe: Recipe
    key: Key

    @property
    def run(self) -> str:
        """What makes a run: its recipe and its key."""
        return json.dumps({"recipe": self.recipe.to_json(), "key": [self.key.seed, *self.key.path]})

    def save(self, state: Mapping[str, Tensor], step: int) -> None:
        """Write the state before this step."""
        held = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        put(self.path, save(held, {"run": self.run, "step": str(step)}))

    def restore(self, state: Mapping[str, Tensor]) -> int:
        """Write what the file holds into these tensors; the step to go on with, 0 without a file."""
        if not self.path.is_file():
            return 0
        with safe_open(self.path, "pt") as held, torch.no_grad():
            about = held.metadata() or {}
            if about.get("run") != self.run:
                raise FormatError(
                    f"{self.path} holds another run ({about.get('run', 'not of a training')}); this one is "
                    f"{self.run}. Remove the file or name another"
                )
            for name, tensor in state.items():
                tensor.copy_(held.get_tensor(name))
        return int(about["step"])
