"""LLM-x: a language model that is told how sure a classifier is names the tokens it thinks matter."""

from veridical.gef.llm.endpoint import Endpoint
from veridical.gef.llm.explainer import LLMx
from veridical.gef.llm.local import LocalModel
from veridical.gef.llm.prompt import build_prompt, parse_reply

__all__ = ["Endpoint", "LLMx", "LocalModel", "build_prompt", "parse_reply"]
