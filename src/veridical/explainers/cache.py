"""Explanations kept on disk by content: the same task, settings, seed and plan find the same file."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import asdict
from pathlib import Path

from veridical.core.key import Key
from veridical.core.settings import holds_code
from veridical.errors import FormatError
from veridical.explainers import Explainer
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.context import Memo
from veridical.values.explanation import Explanation
from veridical.values.task import Task

log = logging.getLogger("veridical")


class ExplanationCache:
    """A folder of explanations, addressed by what made them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, explainer: Explainer, task: Task, key: Key) -> Path:
        """Where the explanation of this content lies."""
        content = {
            "task": task.content_hash(),
            "explainer": explainer.to_json(),
            "key": [key.seed, *key.path],
            "plan": asdict(task.predictor.plan),
            "device": task.device.type,
            # what a model computes does not all lie in its weights
            "answers": hashlib.blake2b(task.outputs.double().cpu().numpy().tobytes()).hexdigest(),
        }
        digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
        return self.folder / f"{re.sub(r'[^0-9a-zA-Z_]+', '-', explainer.name)}-{digest}.safetensors"

    def get(self, explainer: Explainer, task: Task, key: Key, memo: Memo | None = None) -> Explanation:
        """Read the explanation, or make it and keep it; where a user's function takes part it is not kept."""
        model = task.predictor.model
        bare = isinstance(model, FunctionModel) or (isinstance(model, ArrayModel) and model.estimator is None)
        if bare or holds_code(explainer) or holds_code(task.fill):
            log.info("'%s' is not cached: a function takes part, and its source may change", explainer.name)
            return explainer(task, key, memo)
        path = self.path(explainer, task, key)
        if path.is_file():
            try:
                return Explanation.load(path, path.stem).to(task.device)
            except FormatError as error:
                log.warning("%s; it is made again", error)
        explanation = explainer(task, key, memo)
        explanation.save(path, path.stem)
        return explanation
