"""The small head of the concept tests, with embeddings on both sides of it."""

from tests.concepts.conftest import head, test, train

__all__ = ["head", "test", "train"]
