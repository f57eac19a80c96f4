"""The paper's study: strata, plain data and pictures, beside the package's own figures."""

import json

import pytest
import torch
from matplotlib import pyplot

import veridical as vd
from replications.qge.study import KeptOrder, PaperStudy, paper_study
from tests.qge.conftest import table
from veridical.errors import InputError
from veridical.functional import kendall_tau_b

pytestmark = pytest.mark.slow


def test_strata() -> None:
    quality = torch.randn(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noisy = quality + torch.randn(5000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kept = KeptOrder(quality)
    own, table_ = (kept.compare(other)[2] for other in (quality, noisy))
    assert own.shape == table_.shape == (5,)
    assert torch.allclose(own, torch.ones(5, dtype=torch.float64))
    z = (quality - quality.mean()) / quality.std(correction=0)
    second = (z >= 1.0) & (z < 1.5)
    assert float(table_[1]) == pytest.approx(float(kendall_tau_b(quality[second], noisy[second])))


def test_it_agrees_with_the_package_s_study() -> None:
    for few in ({}, {"rankings": 40}):
        make = vd.qge.sampled_study if few else vd.qge.exhaustive_study
        own = paper_study(table(5, 3), draws=2, **few)
        other = make(table(5, 3), draws=2, progress=False, **few)
        for name in ("tau", "rho", "spread", "ids"):
            assert torch.equal(getattr(own, name), getattr(other, name))
        assert repr(own) == repr(other)
    assert len(own.strata_frame()) == 3 * 5 * 3


def test_a_study_is_plain_data() -> None:
    study = paper_study(table(4, 2), draws=2)
    again = PaperStudy.from_json(json.loads(json.dumps(study.to_json())))
    assert repr(again) == repr(study)
    for name in ("ids", "tau", "rho", "spread"):
        assert torch.equal(getattr(again, name), getattr(study, name))
    assert torch.allclose(again.stratum_tau, study.stratum_tau, equal_nan=True)
    for own, other in zip(again.gap_histogram, study.gap_histogram, strict=True):
        assert torch.equal(own, other)


def test_pictures() -> None:
    study = paper_study(table(5, 2), draws=2)
    for draw in (study.plot, study.plot_strata, study.plot_distribution):
        _, ax = pyplot.subplots()
        assert draw(ax=ax) is ax
        assert ax.get_xlabel()
    study.plot(rho=True)
    study.plot(stratum=0)
    with pytest.raises(InputError, match="stratum is 0 to 4"):
        study.plot(stratum=5)
    study.plot_distribution(of="quality")
    with pytest.raises(InputError, match="QRAND_1 to QRAND_2"):
        study.plot_strata(draws=3)
    pyplot.close("all")
