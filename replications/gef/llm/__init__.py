"""LLM-x: a language model that is told how sure a classifier is names the tokens it thinks matter."""

from replications.gef.llm.endpoint import Endpoint
from replications.gef.llm.explainer import LLMx
from replications.gef.llm.local import LocalModel
from replications.gef.llm.prompt import build_prompt, parse_reply

__all__ = ["Endpoint", "LLMx", "LocalModel", "build_prompt", "parse_reply"]
