"""SURF: concept explanations, methods that make them, and the measure that tells whether they are faithful."""

from veridical.surf.concepts import Concepts
from veridical.surf.cshap_eval import Training, cshap_eval
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.surf.judgement import Judgement
from veridical.surf.judging import ice_eval, judge
from veridical.surf.sanity import SanityTable, perfect, random_concepts, random_importances, sanity
from veridical.surf.splitting import Split, split

__all__ = [
    "Concepts",
    "Embeddings",
    "Head",
    "Judgement",
    "SanityTable",
    "Split",
    "Training",
    "cshap_eval",
    "ice_eval",
    "judge",
    "perfect",
    "random_concepts",
    "random_importances",
    "sanity",
    "split",
]
