"""SURF: concept explanations, methods that make them, and the measure of their faithfulness."""

from veridical.surf.comparison import Comparison, compare, compare_on
from veridical.surf.concepts import Concepts
from veridical.surf.cshap_training import Training, cshap_eval
from veridical.surf.deletion import DeletionCurve, concept_deletion, pixel_deletion, weight_deletion
from veridical.surf.embeddings import Embeddings
from veridical.surf.head import Head
from veridical.surf.judgement import Judgement
from veridical.surf.masked import segment_embeddings
from veridical.surf.measures import ice_eval, judge
from veridical.surf.methods import (
    CDISCO,
    CRAFT,
    HUMCD,
    ICA,
    ICE,
    MCD,
    NMF,
    PCA,
    SAE,
    ConceptMethod,
    ConceptSHAP,
    Dictionary,
    Found,
    KMeans,
    MatchingPursuit,
    crop_embeddings,
    load_saelens,
)
from veridical.surf.parsimony_curve import Parsimony, parsimony, plateau
from veridical.surf.plots import concept_grid, plot_parsimony, surrogate_against_model
from veridical.surf.positions import at_positions, unflatten
from veridical.surf.sanity_check import (
    SanityTable,
    constant,
    perfect,
    random_concepts,
    random_importances,
    sanity,
    sanity_of_head,
)
from veridical.surf.splitting import Split, split
from veridical.surf.stability import Stability, stability
from veridical.surf.upper_bound import ErrorSplit, error_split, rank_optimum
from veridical.surf.verdict import ConceptVerdict

__all__ = [
    "split",
    "Split",
    "Head",
    "Embeddings",
    "Concepts",
    "judge",
    "Judgement",
    "compare",
    "compare_on",
    "Comparison",
    "sanity",
    "sanity_of_head",
    "SanityTable",
    "perfect",
    "random_importances",
    "random_concepts",
    "constant",
    "ConceptVerdict",
    "Stability",
    "stability",
    "ice_eval",
    "cshap_eval",
    "Training",
    "concept_deletion",
    "weight_deletion",
    "pixel_deletion",
    "DeletionCurve",
    "ConceptMethod",
    "Found",
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
    "MatchingPursuit",
    "load_saelens",
    "parsimony",
    "Parsimony",
    "plateau",
    "unflatten",
    "at_positions",
    "rank_optimum",
    "error_split",
    "ErrorSplit",
    "concept_grid",
    "plot_parsimony",
    "surrogate_against_model",
]
