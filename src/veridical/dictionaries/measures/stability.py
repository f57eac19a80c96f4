"""Do two trainings find the same atoms?"""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.dictionaries.bench import Subject
from veridical.dictionaries.truth import mcc
from veridical.errors import NotApplicableError


def stability(subject: Subject) -> Tensor:
    """The mean cosine of atoms to their match in a dictionary trained with another seed."""
    if subject.sibling is None:
        raise NotApplicableError("stability needs a second dictionary, trained with another seed")
    value = mcc(subject.sibling.decoder, subject.dictionary.decoder)
    return torch.full((subject.bench.parts,), value, dtype=torch.float64)
