"""An audit on a Ray cluster: the bits of one process."""

import pytest
import torch

import veridical as vd
from tests.auditing.test_jobs import FAST, METHODS, frame
from veridical.auditing import audit

pytest.importorskip("ray")
pytestmark = pytest.mark.extras


def test_an_audit_on_ray_has_the_bits_of_one_process():
    from veridical.study.ray_pool import RayPool

    # each its own task: what one has asked, another need not ask again
    here = audit(vd.tasks.load("known/linear"), explainers=METHODS, effort=FAST, samples=24, concepts=())
    with RayPool(num_cpus=2) as pool:
        task = vd.tasks.load("known/linear")
        there = audit(task, explainers=METHODS, effort=FAST, samples=24, concepts=(), executor=pool)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result()
    assert frame(there).equals(frame(here))
    assert there.sentences == here.sentences
    for cell, scores in here.evaluation.scores.items():
        assert torch.equal(scores.values.nan_to_num(7), there.evaluation.scores[cell].values.nan_to_num(7))
    assert there.costs["race"].forward >= here.costs["race"].forward > 0
    import ray

    assert not ray.is_initialized()
