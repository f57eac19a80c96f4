"""Feature visualisation: pictures raise their logit, do not depend on the batch, and go through GEF."""

import matplotlib as mpl
import pytest
import torch

import veridical as vd
from tests.reference.gef import of_form
from veridical.gef import Maco, class_task
from veridical.gef.visualisation import colours, in_colour, seen_from
from veridical.testing import tiny_task

mpl.use("Agg")


@pytest.fixture(scope="module")
def digits() -> vd.Task:
    return vd.tasks.load("digits")


def check_raises(digits: vd.Task, images: torch.Tensor, classes: torch.Tensor) -> None:
    """The logit of each class is above that of 95% of noise images, and the model says the class."""
    rows = digits.train
    drawn = torch.rand(100, *rows.shape[1:], generator=torch.Generator().manual_seed(0))
    noise = digits.predictor.outputs(rows.min() + (rows.max() - rows.min()) * drawn)
    outputs = digits.predictor.outputs(images)
    own = outputs.gather(1, classes[:, None])[:, 0]
    assert bool((own > noise[:, classes].quantile(0.95, dim=0)).all())
    assert float((outputs.argmax(-1) == classes).double().mean()) >= 0.9


def test_pictures_raise_their_class(digits: vd.Task) -> None:
    found = vd.gef.visualise(digits, steps=50)
    images, classes = found.maps(), found.targets
    check_raises(digits, images, classes)
    with pytest.raises(AssertionError):
        check_raises(digits, images, classes.roll(1))
    assert float(images.min()) >= float(digits.train.min()) - 1e-5  # type: ignore[union-attr]
    assert float(images.max()) <= float(digits.train.max()) + 1e-5  # type: ignore[union-attr]
    assert found.cost.backward == 50 * 10 * Maco().views
    assert [cell.get_title() for cell in vd.gef.plot_classes(found).axes] == [
        str(c) for c in classes.tolist()
    ]


def test_a_batch_of_classes_is_each_by_itself() -> None:
    task = tiny_task("image", 40)
    explainer = Maco(steps=6)
    on = class_task(task)
    whole = explainer(on, vd.core.Key(2))
    for place in range(len(on)):
        alone = explainer(on[place : place + 1], vd.core.Key(2))
        assert torch.allclose(whole.values[place], alone.values[0], atol=1e-9)
    assert torch.equal(explainer(on, vd.core.Key(2)).values, whole.values)
    assert not torch.allclose(explainer(on, vd.core.Key(3)).values, whole.values)


def check_colours(root: torch.Tensor, rows: torch.Tensor) -> None:
    """Independent channels mixed by this root have the covariance of the rows' channels, but for a factor."""
    flat = rows.movedim(1, 0).flatten(1)
    found, expected = root @ root.T, flat.cov(correction=0)
    assert torch.allclose(found / found.trace(), expected / expected.trace(), atol=1e-9)


def test_channels_go_together_as_in_real_images() -> None:
    task = tiny_task("image")
    rows = task.train.clone()  # type: ignore[union-attr]
    rows[:, 1] = 0.8 * rows[:, 0] + 0.2 * rows[:, 1]
    task = class_task(vd.Task(task.model, task.inputs, train=rows))
    root = colours(task)
    check_colours(root, rows)
    with pytest.raises(AssertionError):
        check_colours(torch.eye(2, dtype=rows.dtype), rows)
    assert float(root.norm(dim=1).max()) == pytest.approx(1.0)
    # the colours that `mean_magnitude` takes apart are those that `in_colour` puts together
    apart = torch.einsum("dc,nchw->ndhw", torch.linalg.inv(root), rows)
    assert torch.allclose(in_colour(apart, task), rows, atol=1e-9)


def test_views_show_parts_no_smaller_than_asked() -> None:
    task = class_task(tiny_task("image", 40))
    ramp = torch.linspace(0, 1, 64, dtype=torch.float64).expand(len(task), 1, 64, 64)
    for smallest in (0.25, 0.8):
        seen = seen_from(ramp, task, 32, vd.core.Key(1), smallest)
        # away from the mirrored edge the slope of a ramp is the share of the image that is shown
        slope = (seen[..., 1:] - seen[..., :-1]).abs().amax((1, 2, 3)) * 63
        assert float(slope.min()) >= smallest - 1e-6
        assert float(slope.min()) < smallest + 0.2
        assert float(slope.max()) <= 1 + 1e-6
    with pytest.raises(vd.errors.InputError, match="smallest is a finite number above 0 and at most 1"):
        Maco(smallest=0)


def test_model_distortion_of_a_class_is_the_mean_over_its_rows() -> None:
    """D_f of class c: the mean of |y_c - y_hat_c| over the rows predicted c, under the same noise."""
    task = tiny_task("image", 40)
    on = class_task(task, rows_per_class=100)
    metric = vd.gef.FastGEF(draws=1, path=(0.1, 0.2, 0.4))
    scores = vd.score(metric, on, Maco(steps=2))
    rows = task.train
    clean = task.predictor.outputs(rows)
    perturbed = on.with_noise(0.2, vd.core.Key(0) / "gef" / "noise" / 0 / 1)
    noisy = perturbed.predictor.outputs(rows)
    for place, class_ in enumerate(on.targets.tolist()):
        own = clean.argmax(-1) == class_
        expected = (clean[own, class_] - noisy[own, class_]).abs().mean()
        assert float(scores.details["model_distortion"][place, 0, 1]) == pytest.approx(
            float(expected), rel=1e-6
        )


@pytest.mark.parametrize("form", ["fast", "arc", "jacobian", "reference"])
def test_every_form_scores_classes(form: str) -> None:
    on = class_task(tiny_task("image", 40))
    metric = of_form(form, draws=1, steps=2, path=(0.1, 0.3, 0.6))
    scores = vd.score(metric, on, Maco(steps=3))
    assert bool(scores.values.isfinite().all())


def test_what_needs_inputs_refuses_classes_and_the_reverse() -> None:
    task = tiny_task("image")
    on = class_task(task)
    with pytest.raises(vd.errors.NotApplicableError, match="classes"):
        vd.score("pixel_flipping", on, "random")
    with pytest.raises(vd.errors.NotApplicableError, match="classes"):
        vd.explain("gradient", on)
    with pytest.raises(vd.errors.NotApplicableError, match="class_task"):
        Maco()(task)
    with pytest.raises(vd.errors.NotApplicableError, match="picture of a class"):
        vd.score(vd.gef.FastGEF(perturb="input"), on, Maco(steps=1))
    with pytest.raises(vd.errors.InputError, match="classes are different numbers"):
        class_task(task, [c for c in range(3) if c not in on.targets.tolist()] or [7])
    with pytest.raises(vd.errors.NotApplicableError, match="tokens"):
        class_task(tiny_task("text"))
