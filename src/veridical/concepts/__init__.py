"""SURF: concept explanations, methods that make them, and the measure of their faithfulness."""

from veridical.concepts.comparison import Comparison, compare, compare_on
from veridical.concepts.concepts import Concepts
from veridical.concepts.cshap_training import Training, cshap_eval
from veridical.concepts.deletion import DeletionCurve, concept_deletion, pixel_deletion, weight_deletion
from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.concepts.judgement import Judgement
from veridical.concepts.masked import segment_embeddings
from veridical.concepts.measures import ice_eval, judge
from veridical.concepts.methods import (
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
from veridical.concepts.parsimony_curve import Parsimony, parsimony, plateau
from veridical.concepts.plots import concept_grid, plot_parsimony, surrogate_against_model
from veridical.concepts.positions import at_positions, unflatten
from veridical.concepts.sanity_check import (
    SanityTable,
    constant,
    perfect,
    random_concepts,
    random_importances,
    sanity,
    sanity_of_head,
)
from veridical.concepts.splitting import Split, split
from veridical.concepts.stability import Stability, stability
from veridical.concepts.upper_bound import ErrorSplit, error_split, rank_optimum
from veridical.concepts.verdict import ConceptVerdict

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
