"""What a surrogate asks of its reader: operations from concepts to outputs, and learned parameters."""

from __future__ import annotations

HIDDEN = 500
"""Width of C-SHAP's hidden layer."""


def surf_flops(outputs: int, concepts: int) -> int:
    """`2 K C`, a multiplication and an addition a concept and output.

    >>> surf_flops(outputs=100, concepts=1)
    200
    """
    return 2 * concepts * outputs


def ice_flops(outputs: int, concepts: int, dimension: int) -> int:
    """`C D (2 K + 1)`: rebuild the embedding for every output, then its head.

    >>> ice_flops(outputs=100, concepts=1, dimension=2048)
    614400
    """
    return outputs * dimension * (2 * concepts + 1)


def cshap_flops(outputs: int, concepts: int, dimension: int, hidden: int = HIDDEN) -> int:
    """`2 C (H K + H D + D)`: two layers to the embedding for every output, then its head.

    >>> cshap_flops(outputs=100, concepts=1, dimension=2048)
    205309600
    """
    return 2 * outputs * (hidden * concepts + hidden * dimension + dimension)


def cshap_parameters(concepts: int, dimension: int, hidden: int = HIDDEN) -> int:
    """Weights and biases of the two layers that all outputs share.

    >>> cshap_parameters(concepts=1, dimension=2048)
    1027048
    """
    return hidden * (concepts + 1) + dimension * (hidden + 1)
