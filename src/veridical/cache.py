"""Explanations kept on disk by content: the same task, settings, seed and plan find the same file."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from veridical.errors import FormatError
from veridical.explainers import Explainer, FunctionExplainer
from veridical.explanation import Explanation
from veridical.rng import Key
from veridical.task import Task

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
            "plan": task.predictor.plan.to_json(),
            "device": task.device.type,
        }
        digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
        return self.folder / f"{explainer.name}-{digest}.safetensors"

    def get(self, explainer: Explainer, task: Task, key: Key) -> Explanation:
        """Read the explanation, or make it and keep it; a user's function, whose source may change, is not kept."""
        if isinstance(explainer, FunctionExplainer):
            log.info("'%s' is a function; its explanations are not cached", explainer.name)
            return explainer(task, key)
        path = self.path(explainer, task, key)
        if path.is_file():
            try:
                return Explanation.load(path).to(task.device)
            except FormatError as error:
                log.warning("%s; it is made again", error)
        explanation = explainer(task, key)
        explanation.save(path)
        return explanation
