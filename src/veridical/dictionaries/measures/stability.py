"""Do two trainings find the same atoms?"""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key, permutation
from veridical.dictionaries.subject import Subject
from veridical.dictionaries.truth import mcc
from veridical.errors import NotApplicableError

MATCHED = 512
"""Atoms that are matched at most: the time of a matching grows with the cube of the width."""


def stability(subject: Subject) -> Tensor:
    """The mean cosine of atoms to their match in a dictionary trained with another seed.

    Of a wider dictionary 512 atoms, picked at random, are matched with all of the other's.
    """
    if subject.sibling is None:
        raise NotApplicableError("stability needs a second dictionary, trained with another seed")
    own = subject.dictionary.decoder
    some = permutation(Key(0), torch.zeros(1, dtype=torch.int64), 0, len(own))[0][:MATCHED]
    value = mcc(subject.sibling.decoder, own[some.to(own.device)])
    return torch.full((subject.bench.parts,), value, dtype=torch.float64)
