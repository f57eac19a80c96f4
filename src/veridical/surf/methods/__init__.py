"""Concept methods, one file each: `Method(n_concepts=5).fit(embeddings, head, seed)` gives `Concepts`."""

from veridical.surf.dictionary import Dictionary
from veridical.surf.methods.base import ConceptMethod, Found
from veridical.surf.methods.cdisco import CDISCO
from veridical.surf.methods.craft import CRAFT, crop_embeddings
from veridical.surf.methods.cshap import ConceptSHAP
from veridical.surf.methods.hu_mcd import HUMCD
from veridical.surf.methods.ica import ICA
from veridical.surf.methods.kmeans import KMeans
from veridical.surf.methods.matching_pursuit import MatchingPursuit
from veridical.surf.methods.mcd import MCD
from veridical.surf.methods.nmf import ICE, NMF
from veridical.surf.methods.pca import PCA
from veridical.surf.methods.sae import SAE
from veridical.surf.methods.saelens import load_saelens

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
