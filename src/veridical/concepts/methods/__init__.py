"""Concept methods, one file each: `Method(n_concepts=5).fit(embeddings, head, seed)` gives `Concepts`."""

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.concepts.methods.cdisco import CDISCO
from veridical.concepts.methods.craft import CRAFT, crop_embeddings
from veridical.concepts.methods.cshap import ConceptSHAP
from veridical.concepts.methods.hu_mcd import HUMCD
from veridical.concepts.methods.ica import ICA
from veridical.concepts.methods.kmeans import KMeans
from veridical.concepts.methods.matching_pursuit import MatchingPursuit
from veridical.concepts.methods.mcd import MCD
from veridical.concepts.methods.nmf import ICE, NMF
from veridical.concepts.methods.pca import PCA
from veridical.concepts.methods.sae import SAE
from veridical.concepts.methods.saelens import load_saelens

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
    "Dictionary",
    "Found",
    "KMeans",
    "MatchingPursuit",
    "crop_embeddings",
    "load_saelens",
]
