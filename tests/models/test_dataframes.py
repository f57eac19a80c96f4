"""Data frames become tensors and come back as they were."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from veridical.errors import InputError
from veridical.models.dataframes import FrameCodec, is_frame


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [20, 30, 40],
            "height": [1.5, 1.8, 1.7],
            "city": ["Rome", "Oslo", "Rome"],
            "smokes": [True, False, True],
            "grade": pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"], ordered=True),
        }
    )


def test_encode_and_decode_are_inverse() -> None:
    codec = FrameCodec.of(frame())
    rows = codec.encode(frame())
    assert rows.dtype == torch.float64
    assert rows.shape == (3, 5)
    back = codec.decode(rows)
    assert list(back.columns) == list(frame().columns)
    for name in ("city", "smokes", "grade"):
        pd.testing.assert_series_equal(back[name], frame()[name])
    np.testing.assert_array_equal(back["age"], frame()["age"])


def test_categories_keep_their_order_in_every_chunk() -> None:
    codec = FrameCodec.of(frame())
    part = codec.decode(codec.encode(frame())[:1])
    assert list(part["grade"].cat.categories) == ["c", "b", "a"]
    assert part["grade"].cat.ordered


def test_categories_are_learned_from_inputs_and_train_together() -> None:
    train = frame().assign(city=["Bern", "Bern", "Oslo"])
    codec = FrameCodec.of(frame(), train)
    assert codec.categories[2] == ("Bern", "Oslo", "Rome")
    assert codec.decode(codec.encode(train))["city"].tolist() == ["Bern", "Bern", "Oslo"]


def test_column_names_need_not_be_text() -> None:
    numbered = pd.DataFrame({0: [1.0, 2.0], 1: ["a", "b"]})
    codec = FrameCodec.of(numbered)
    assert list(codec.decode(codec.encode(numbered)).columns) == [0, 1]


def test_what_is_missing_comes_back_missing() -> None:
    holes = frame().assign(city=["Rome", None, "Oslo"])
    codec = FrameCodec.of(frame())
    back = codec.decode(codec.encode(holes))
    assert back["city"].isna().tolist() == [False, True, False]
    assert back["city"].dropna().tolist() == ["Rome", "Oslo"]


def test_times_are_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"'when' holds times.*dt.month"):
        FrameCodec.of(frame().assign(when=pd.Timestamp("2020-01-01")))


def test_foreign_values_are_refused() -> None:
    codec = FrameCodec.of(frame())
    with pytest.raises(InputError, match="column 'city' has the level 'Atlantis', unknown before"):
        codec.encode(frame().assign(city=["Rome", "Atlantis", "Oslo"]))
    with pytest.raises(InputError, match="train has columns"):
        FrameCodec.of(frame(), frame().drop(columns="age"))


def test_only_data_frames_are_data_frames() -> None:
    assert is_frame(frame())
    assert not is_frame(frame()["age"])
    assert not is_frame(np.zeros((2, 2)))
