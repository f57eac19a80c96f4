"""Explainers: one file a family, all through one door `(task, key) -> Explanation`."""

from typing import TYPE_CHECKING

from veridical.explainers.base import Explainer as Explainer
from veridical.explainers.base import applicable as applicable
from veridical.explainers.base import register as register
from veridical.explainers.base import registry as registry
from veridical.first_use import on_first_use

if TYPE_CHECKING:
    from veridical.explainers.every import *  # noqa: F403 (what the next line finds when it is asked for)

__getattr__, __dir__ = on_first_use(__name__, {"every": ("*",)})
