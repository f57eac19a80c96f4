"""SURF: concept explanations, methods that make them, and the measure of their faithfulness."""

from veridical.concepts.comparison import (
    Comparison,
    ConceptVerdict,
    Parsimony,
    Stability,
    compare,
    parsimony,
    plateau,
    stability,
)
from veridical.concepts.concepts import Concepts, at_positions, unflatten
from veridical.concepts.dictionary import Dictionary
from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.materials import crop_embeddings, segment_embeddings
from veridical.concepts.measures import ErrorSplit, Judgement, error_split, ice_eval, judge
from veridical.concepts.methods.base import ConceptMethod, ConceptVectors
from veridical.concepts.methods.cshap import ConceptSHAP
from veridical.concepts.methods.decompositions import CDISCO, CRAFT, ICA, ICE, NMF, PCA, SAE, KMeans
from veridical.concepts.methods.mcd import HUMCD, MCD
from veridical.concepts.plots import concept_grid
from veridical.concepts.sanity_check import (
    SanityTable,
    constant,
    perfect,
    random_concepts,
    random_importances,
    rank_optimum,
    sanity,
)
from veridical.concepts.splitting import Split, split

__all__ = [
    "split",
    "Split",
    "Head",
    "Embeddings",
    "Concepts",
    "judge",
    "Judgement",
    "compare",
    "Comparison",
    "sanity",
    "SanityTable",
    "perfect",
    "random_importances",
    "random_concepts",
    "constant",
    "ConceptVerdict",
    "Stability",
    "stability",
    "ice_eval",
    "ConceptMethod",
    "ConceptVectors",
    "PCA",
    "KMeans",
    "ICA",
    "NMF",
    "CDISCO",
    "ICE",
    "CRAFT",
    "crop_embeddings",
    "ConceptSHAP",
    "MCD",
    "HUMCD",
    "segment_embeddings",
    "SAE",
    "Dictionary",
    "parsimony",
    "Parsimony",
    "plateau",
    "unflatten",
    "at_positions",
    "rank_optimum",
    "error_split",
    "ErrorSplit",
    "concept_grid",
]
