"""Concept methods: `Method(n_concepts=5).fit(embeddings, head, seed)` gives `Concepts`."""

from veridical.concepts.methods.base import ConceptMethod, ConceptVectors
from veridical.concepts.methods.craft import CRAFT
from veridical.concepts.methods.cshap import ConceptSHAP
from veridical.concepts.methods.decompositions import CDISCO, ICA, ICE, NMF, PCA, KMeans
from veridical.concepts.methods.mcd import HUMCD, MCD
from veridical.concepts.methods.sae import SAE

METHODS: dict[str, type[ConceptMethod]] = {
    method.name: method
    for method in (PCA, KMeans, ICA, NMF, CDISCO, ICE, CRAFT, ConceptSHAP, MCD, HUMCD, SAE)
}
"""Every concept method by its name."""

__all__ = [
    "METHODS",
    "CDISCO",
    "CRAFT",
    "HUMCD",
    "ICA",
    "ICE",
    "MCD",
    "NMF",
    "PCA",
    "SAE",
    "ConceptMethod",
    "ConceptSHAP",
    "ConceptVectors",
    "KMeans",
]
