"""Where a model can be split: any linear head, tokens, inner layers, and heads that only look linear."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import veridical as vd
from tests.concepts.conftest import draw
from veridical.concepts import PCA, Concepts, judge
from veridical.errors import NotApplicableError


def task_of(model: nn.Module, *shape: int, rows: int = 60, **options) -> vd.Task:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    inputs = draw(1, rows, *shape).float()
    return vd.Task(model.eval(), inputs, train=draw(2, rows, *shape).float(), **options)


class Functional(nn.Module):
    """A head without a layer: parameters and a product."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.front = nn.Linear(4, 6)
        self.weight = nn.Parameter(torch.zeros(3, 6))
        self.bias = nn.Parameter(torch.zeros(3))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.front(x))
        if self.how == "einsum":
            return torch.einsum("nd,cd->nc", h, self.weight) + self.bias
        return F.linear(h, self.weight) + self.bias if self.how == "linear" else h @ self.weight.T


class Pointwise(nn.Module):
    """A 1x1 convolution as a head, before or after the mean over positions."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.bend = nn.ReLU()
        self.head = nn.Conv2d(5, 3, 1)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bend(self.conv(x))
        return self.head(h.mean((2, 3), keepdim=True)).flatten(1) if self.after else self.head(h).mean((2, 3))


class Tokens(nn.Module):
    """A head at every token, of which one is answered: the last that is not padding."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.score = nn.Linear(8, 3, bias=False)
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        every = self.score(self.block(x))
        if self.where == "mean":
            return every.mean(1)
        if self.where == "last":
            return every[:, -1]
        at = (x[:, :, 0] > 0).long().cumsum(1).argmax(1)  # another one in every row
        return every[torch.arange(len(x)), at]


class Several(nn.Module):
    """A head of two layers that read one embedding, or of one layer whose output is scaled."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.front, self.one, self.other = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.front(x))
        if self.how == "scaled":
            return self.one(h) / 3
        parts = self.one(h), self.other(h)
        return torch.cat(parts, 1) if self.how == "side by side" else sum(parts)


HEADS = {
    "scaled": (lambda: Several("scaled"), (4,), "vector"),
    "two summed": (lambda: Several("summed"), (4,), "vector"),
    "two side by side": (lambda: Several("side by side"), (4,), "vector"),
    "bare": (lambda: nn.Linear(6, 3), (6,), "vector"),
    "F.linear": (lambda: Functional("linear"), (4,), "vector"),
    "matmul": (lambda: Functional("product"), (4,), "vector"),
    "einsum": (lambda: Functional("einsum"), (4,), "vector"),
    "1x1 before pooling": (lambda: Pointwise(False), (1, 8, 8), "mean"),
    "1x1 after pooling": (lambda: Pointwise(True), (1, 8, 8), "mean"),
    "mean of tokens": (lambda: Tokens("mean"), (5, 8), "mean"),
    "last token": (lambda: Tokens("last"), (5, 8), "token"),
    "some token": (lambda: Tokens("some"), (5, 8), "token"),
}


@pytest.mark.parametrize("name", HEADS)
def test_every_linear_head_is_found_and_exact(name):
    make, shape, read = HEADS[name]
    task = task_of(make(), *shape)
    parts = vd.concepts.split(task)
    assert parts.read == read
    test = parts.test()
    assert torch.allclose(parts.head.outputs(test.values).float(), task.outputs, atol=1e-4)
    assert judge(vd.concepts.perfect(parts.head), test, parts.head).mae == 0
    found = vd.concepts.compare(task, ["pca", vd.concepts.SAE(2, steps=5)])
    assert set(found.judgements) == {"pca", "sae"}
    if parts.positions:
        each = parts.test(spatial=True)
        assert each.spatial
        assert torch.allclose(each.pooled, test.values, atol=1e-5)
        random = vd.concepts.random_concepts(parts.head)  # of one token that is answered, others tell nothing
        one, other = judge(random, each, parts.head, "each").mae, judge(random, test, parts.head).mae
        assert one == pytest.approx(other, abs=1e-4)


class Masked(Tokens):
    """Tokens with a mask beside them, as tokenizers give it."""

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        last = attention_mask.sum(1) - 1
        return self.score(x + self.block(x).mean(1, keepdim=True))[torch.arange(len(x)), last]


def test_no_autoencoder_is_trained_on_padding():
    model, rows = Masked("last").eval(), draw(3, 20, 5, 8).float()
    side = {"attention_mask": (torch.arange(5) < torch.arange(20)[:, None] % 4 + 2).long()}
    parts = vd.concepts.split(vd.Task(model, rows, side=side, train=rows, train_side=side))
    words = parts.train(spatial=True)
    assert words.vectors.shape == (int(side["attention_mask"].sum()), 8)
    assert torch.equal(words.take(slice(3)).vectors, words.values[:3][side["attention_mask"][:3].bool()])
    assert torch.equal(words.as_pooled().vectors, parts.train().values)
    vd.concepts.SAE(1, steps=3).fit(words, parts.head)


@pytest.mark.parametrize("after", [False, True])
def test_segments_are_cut_before_a_1x1_convolution_too(after):
    """It was said that no layer gives a map whose mean is the embedding, though the one before it does."""
    parts = vd.concepts.split(task_of(Pointwise(after), 1, 8, 8))
    assert parts.map_layer == "bend"
    images = parts.task.inputs[:5]
    whole = vd.concepts.segment_embeddings(
        parts, images, lambda x: torch.zeros(len(x), 8, 8, dtype=torch.int64)
    )
    assert torch.allclose(whole.values, parts.test().values[:5], atol=1e-5)
    assert parts.test(spatial=True).values.shape == (len(parts.task.inputs), 36, 5)


class Clipped(nn.Module):
    """Logits that are cut at a bound that few rows reach."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.front, self.fc = nn.Linear(4, 6), nn.Linear(6, 1 if kind == "relu" else 3)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(torch.relu(self.front(x)))
        if self.kind == "relu":
            return torch.relu(y)
        return y.clamp(-4, 4) if self.kind == "clip" else y + 1e-3 * y.square()


@pytest.mark.parametrize("kind", ["relu", "clip", "bent"])
@pytest.mark.parametrize("seed", range(4))
def test_heads_that_are_nearly_linear_are_refused(kind, seed):
    """Four rows were looked at, so clipped heads passed as linear and were judged against `F h + b`."""
    torch.manual_seed(seed)
    options = {"head": "regression"} if kind == "relu" else {}
    model = Clipped(kind)
    inputs = 3 * draw(seed, 200, 4).float()
    task = vd.Task(model, inputs, train=inputs, **options)
    plain = model.fc(torch.relu(model.front(inputs)))
    bends = float((model(inputs) - plain).detach().abs().max()) > 1e-3
    if bends:
        with pytest.raises(NotApplicableError, match="the head is not linear"):
            vd.concepts.split(task)
    else:
        assert vd.concepts.split(task).head.exact


def test_a_train_row_that_is_not_linear_is_noticed_too():
    torch.manual_seed(0)
    model, inputs = Clipped("clip"), 0.01 * draw(0, 50, 4).float()
    task = vd.Task(model, inputs, train=torch.cat([inputs, 100 * draw(1, 50, 4).float()]))
    parts = vd.concepts.split(task)
    with pytest.raises(NotApplicableError, match="on row"):
        parts.train()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_is_not_taken_for_a_bend(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)).to(dtype)
    task = vd.Task(model, draw(0, 300, 20).to(dtype))
    assert vd.concepts.split(task).head.exact


# --- first-order heads ----------------------------------------------------------------------------------


class InPlace(nn.Module):
    """An in-place activation after the named layer, which writes over its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.act, self.fc = nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.act(self.front(x)))


def test_layers_that_work_in_place_do_not_disturb():
    task = task_of(InPlace(), 4)
    parts = vd.concepts.split(task, "front", first_order=True)
    assert torch.allclose(parts.test().values, task.model.front(task.inputs), atol=1e-6)
    mean = task.model.front(task.train).mean(0)
    slope = task.model.fc.weight * (mean > 0)
    assert torch.allclose(parts.head.weight.float(), slope, atol=1e-5)


class Around(nn.Module):
    """A branch leads around the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.side, self.fc = nn.Linear(4, 6), nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.tanh(self.front(x))) + self.side(x)


def test_a_branch_around_the_layer_is_averaged_not_taken_from_one_row():
    task = task_of(Around(), 4)
    turned = vd.Task(task.model, task.inputs.flip(0), train=task.train.flip(0))
    one, other = (vd.concepts.split(t, "front", first_order=True).head for t in (task, turned))
    assert torch.allclose(one.bias, other.bias, atol=1e-5)
    assert torch.allclose(one.weight, other.weight, atol=1e-5)
    model, mean = task.model, task.model.front(task.train).mean(0)
    wanted = model.fc(torch.tanh(mean)) + model.side(task.train).mean(0)
    assert torch.allclose(one.outputs(mean[None])[0].float(), wanted, atol=1e-4)


def test_maps_and_tokens_of_inner_layers_are_read_as_asked():
    task = task_of(Pointwise(False), 1, 8, 8)
    with pytest.raises(NotApplicableError, match="say what it is: read='mean'"):
        vd.concepts.split(task, "conv", first_order=True)
    mean = vd.concepts.split(task, "conv", first_order=True, read="mean")
    maps = task.model.conv(task.inputs)
    assert torch.allclose(mean.test().values, maps.mean((2, 3)), atol=1e-6)
    assert tuple(mean.test(spatial=True).values.shape) == (60, 36, 5)
    each = vd.concepts.split(task, "conv", first_order=True, read="each")
    assert torch.allclose(each.test().values, maps.flatten(1), atol=1e-6)
    rows, summed = vd.concepts.unflatten(each.train(), each.head, 5)
    spread = vd.concepts.at_positions(PCA(2, shared=True).fit(rows, summed), each.head, 5)
    assert judge(spread, each.test(), each.head).mae < 10
    tokens = task_of(Tokens("last"), 5, 8)
    for read, at in (("first", 0), ("last", -1)):
        inner = vd.concepts.split(tokens, "block", first_order=True, read=read)
        hidden = tokens.model.block(tokens.inputs)
        assert torch.allclose(inner.test().values, hidden[:, at], atol=1e-5)
    assert torch.allclose(inner.head.weight.float(), tokens.model.score.weight, atol=1e-5)
    assert judge(PCA(2).fit(inner.train(), inner.head), inner.test(), inner.head).linearisation < 1e-5


def test_the_split_of_errors_is_against_the_model():
    """Importances were fitted to the expanded head, which is only near the model."""
    task = task_of(Around(), 4)
    parts = vd.concepts.split(task, "front", first_order=True)
    train, vectors = parts.train(), draw(5, 3, 2, 6)
    found = vd.concepts.error_split(Concepts.of(vectors, torch.ones(3, 2)), train, train, parts.head)
    codes = torch.einsum("nd,ckd->cnk", train.values.double(), vectors)
    wanted = (train.outputs.double() - parts.head.bias).T[..., None]
    left = codes @ torch.linalg.lstsq(codes, wanted).solution - wanted
    assert found.fitted.rmse == pytest.approx(float(left.square().mean().sqrt()), rel=1e-6)
    assert found.linearisation == pytest.approx(found.own.linearisation)
    straight = (parts.head.outputs(train.values) - train.outputs.double()).abs().mean()
    assert found.linearisation == pytest.approx(float(straight), rel=1e-6)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
MAPS = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_channels": 1}
ARCHITECTURES = {
    "ViT": ({**SMALL, "image_size": 16, "patch_size": 4, "num_channels": 1}, "classifier", "vit.layers.0"),
    "ResNet": (MAPS, "classifier.1", "resnet.encoder.stages.0"),
    "Bert": (SMALL, "classifier", "bert.encoder.layer.0"),
    "DistilBert": (DISTIL, "classifier", "distilbert.transformer.layer.0"),
    "Roberta": (SMALL, "classifier.out_proj", "roberta.encoder.layer.0"),
    "GPT2": (GPT2, "score", "transformer.h.0"),
    "Llama": (SMALL, "score", "model.layers.0"),
}
"""Sizes of each, the head that is found, and an inner block."""


@pytest.mark.extras
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_architectures_of_transformers_are_split_at_their_head(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes, layer, block = ARCHITECTURES[kind]
    images = "num_channels" in sizes
    end = "Image" if images else "Sequence"
    config = getattr(transformers, f"{kind}Config")(
        num_labels=3, **sizes, **({} if images else {"vocab_size": 50, "pad_token_id": 0})
    )
    model = getattr(transformers, f"{kind}For{end}Classification")(config)
    draws = torch.Generator().manual_seed(1)
    rows = (
        torch.rand(40, 1, 16, 16, generator=draws)
        if images
        else torch.randint(1, 50, (40, 9), generator=draws)
    )
    if not images:
        rows[:20, 6:] = 0
    parts = vd.concepts.split(vd.Task(model.eval(), rows, train=rows))
    assert parts.layer == layer
    assert judge(vd.concepts.perfect(parts.head), parts.test(), parts.head).mae == 0
    inner = vd.concepts.split(
        parts.task, block, first_order=True, read="mean" if kind == "ResNet" else "last"
    )
    assert inner.test().dimension == (8 if kind == "ResNet" else 16)
