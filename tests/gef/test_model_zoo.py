"""Every kind of model against the naive loop with deep copies: |dq| <= 1e-6 on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import veridical as vd
from tests.reference.gef import naive_gef

PATH, DRAWS = (0.05, 0.2, 0.4, 0.8), 2


def mlp(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), *more, nn.Linear(12, 3))


class Tied(nn.Module):
    """Two layers share one matrix, and one layer is held twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight
        self.again = self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(4, 8, num_layers=2, batch_first=True, dropout=0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(nn.Linear(12, 12), nn.Tanh())[:4], nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class InPlace(nn.Module):
    """In-place layers, and a buffer that every pass writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1  # type: ignore[operator]
        return self.last(nn.functional.elu(self.first(x), inplace=True)).mul_(2.0)


class BySign(nn.Module):
    """Control flow that follows the data."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = mlp(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if float(x.detach().sum()) > 0 else self.two(x)


class Embedded(nn.Module):
    """A transformers model asked at its embeddings."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        if kind == "encoder":
            small = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
            config = transformers.BertConfig(vocab_size=30, intermediate_size=16, num_labels=3, **small)
            self.own = transformers.BertForSequenceClassification(config)
        else:
            config = transformers.GPT2Config(vocab_size=30, n_embd=8, n_layer=2, n_head=2, num_labels=3)
            config.pad_token_id = 0
            self.own = transformers.GPT2ForSequenceClassification(config)

    def forward(self, x: Tensor) -> Any:
        mask = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        if hasattr(self.own, "transformer"):
            hidden = self.own.transformer(inputs_embeds=x, attention_mask=mask).last_hidden_state
            return self.own.score(hidden[:, -1])
        return self.own(inputs_embeds=x, attention_mask=mask)


def convolution(*, train: bool = False) -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3)
    )
    net(torch.randn(16, 1, 8, 8))
    return net.train(train)


def pruned() -> nn.Module:
    net = mlp()
    prune.l1_unstructured(net[0], "weight", 0.4)
    return net


def normed(norm: Callable[..., nn.Module]) -> nn.Module:
    net = mlp()
    net[0] = norm(net[0])
    return net.eval()


def half_frozen() -> nn.Module:
    net = mlp()
    net[0].requires_grad_(False)
    return net


FLAT, STEPS, IMAGE = (6,), (5, 4), (1, 8, 8)
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, FLAT),
    "tied weights": (Tied, FLAT),
    "BatchNorm and dropout, train mode": (lambda: convolution(train=True), IMAGE),
    "BatchNorm, eval mode": (convolution, IMAGE),
    "LayerNorm": (lambda: mlp(nn.LayerNorm(12)), FLAT),
    "weight norm": (lambda: normed(parametrizations.weight_norm), FLAT),
    # the other map truncates signs that are noised to whole numbers, and may leave no weight but 0
    "orthogonal": (lambda: normed(partial(parametrizations.orthogonal, orthogonal_map="cayley")), FLAT),
    "pruned": (pruned, FLAT),
    "half frozen": (half_frozen, FLAT),
    "torch.jit.script": (lambda: torch.jit.script(mlp()), FLAT),
    "torch.jit.trace": (lambda: torch.jit.trace(mlp(), torch.randn(8, 6)), FLAT),
    "torch.compile, eager": (lambda: torch.compile(mlp(), backend="eager"), FLAT),
    "DataParallel": (lambda: nn.DataParallel(mlp()), FLAT),
    "LSTM": (lambda: Recurrent(nn.LSTM), STEPS),
    "RNN": (lambda: Recurrent(nn.RNN), STEPS),
    "checkpointing": (Checkpointed, FLAT),
    "in place": (InPlace, FLAT),
    "control flow": (BySign, FLAT),
}
HUGGING = {"encoder": (5, 8), "decoder": (5, 8)}
DTYPES = {"float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


def made(make: Callable[[], nn.Module], shape: tuple[int, ...], device: str, dtype: torch.dtype) -> vd.Task:
    torch.manual_seed(0)
    model = make().to(device, dtype)
    return vd.Task(model, torch.randn(6, *shape).to(device, dtype))


def apart(task: vd.Task, strip: str = "") -> float:
    """The largest |dq| between our Fast-GEF and the naive one; the caller's model stays as it is."""
    model = task.model
    before = copy.deepcopy(model.state_dict())
    scores = vd.score(vd.gef.FastGEF(path=PATH, draws=DRAWS), task, "gradient")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return float((scores.values.cpu() - naive_gef(task, model, PATH, DRAWS, strip)).abs().max())


def prefix(model: nn.Module) -> str:
    first = next(iter(dict(model.named_parameters())))
    return next((w for w in ("_orig_mod.", "module.") if first.startswith(w)), "")


@pytest.mark.parametrize("kind", ZOO)
def test_it_scores_as_the_naive_loop_does(kind: str) -> None:
    task = made(*ZOO[kind], "cpu", torch.float32)
    assert apart(task, prefix(task.model)) <= 1e-6


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_in_any_precision(name: str) -> None:
    assert apart(made(mlp, FLAT, "cpu", DTYPES[name])) <= 1e-6


@pytest.mark.extras
@pytest.mark.parametrize("kind", HUGGING)
def test_transformers_models(kind: str) -> None:
    assert apart(made(lambda: Embedded(kind), HUGGING[kind], "cpu", torch.float32)) <= 1e-6


def apart_in_threads(device: str) -> float:
    """The largest |dq| of three threads that score tasks of one model at once."""
    torch.manual_seed(0)
    model = convolution().to(device)
    tasks = [vd.Task(model, torch.randn(6, *IMAGE).to(device)) for _ in range(3)]
    metric = vd.gef.FastGEF(path=PATH, draws=DRAWS)
    with ThreadPoolExecutor(3) as pool:
        scores = list(pool.map(lambda task: vd.score(metric, task, "gradient").values.cpu(), tasks))
    pairs = zip(tasks, scores, strict=True)
    return max(float((own - naive_gef(task, model, PATH, DRAWS)).abs().max()) for task, own in pairs)


def test_several_threads_on_one_model() -> None:
    assert apart_in_threads("cpu") <= 1e-6
