"""Concept methods: `Method(n_concepts=5).fit(embeddings, head, seed)` gives `Concepts`."""

from veridical.concepts.methods.base import ConceptMethod
from veridical.concepts.methods.cshap import ConceptSHAP
from veridical.concepts.methods.decompositions import CDISCO, CRAFT, ICA, ICE, NMF, PCA, SAE, KMeans
from veridical.concepts.methods.mcd import HUMCD, MCD

METHODS: dict[str, type[ConceptMethod]] = {
    method.name: method
    for method in (PCA, KMeans, ICA, NMF, CDISCO, ICE, CRAFT, ConceptSHAP, MCD, HUMCD, SAE)
}
"""Every concept method by its name."""

__all__ = ["METHODS"]
