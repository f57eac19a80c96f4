"""Gradient-type explainers and LRP on text: token maps, valid tokens only, under weight noise too."""

import copy

import pytest
import torch
from torch import nn

from veridical.core.key import Key
from veridical.explainers import Gradient, InputXGradient, IntegratedGradients, Lrp, LrpEpsilon, Saliency
from veridical.values.space import Space
from veridical.values.task import Task


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, ids, mask):
        h = self.rnn(self.embed(ids))[0]
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Encoder(nn.Module):
    def __init__(self, norm_first: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=norm_first, bias=bias)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3, bias=bias)

    def forward(self, ids, mask):
        h = self.body(self.embed(ids), src_key_padding_mask=~mask)
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def text_task(model: nn.Module) -> Task:
    torch.manual_seed(0)
    mask = torch.arange(7) < torch.tensor([[7], [4], [5]])
    ids = torch.randint(1, 20, (3, 7)) * mask
    valid = mask.clone()
    valid[:, 0] = False  # a special token
    return Task(model.double().eval(), ids, side={"mask": mask}, space=Space.tokens(7, valid))


GRADIENTS = [Gradient(), Saliency(), InputXGradient(), IntegratedGradients(8)]


def by_hand(task: Task) -> torch.Tensor:
    """Input times gradient at the embeddings, with hooks and loops."""
    rows = []
    for i in range(len(task)):
        kept = {}

        def grab(_module, _inputs, answer, kept=kept):
            kept["e"] = answer.detach().requires_grad_(True)
            return kept["e"]

        handle = task.predictor.model.embed.register_forward_hook(grab)
        y = task.predictor.model(task.inputs[[i]], task.side["mask"][[i]])[0, task.targets[i]]
        handle.remove()
        (g,) = torch.autograd.grad(y, kept["e"])
        rows.append((g * kept["e"]).sum(-1)[0].detach() * task.space.valid[i])
    return torch.stack(rows)


@pytest.mark.parametrize("make", [Recurrent, Encoder])
def test_token_maps_equal_hooks_by_hand(make):
    torch.manual_seed(1)
    task = text_task(make())
    assert torch.allclose(InputXGradient()(task).values, by_hand(task), atol=1e-10)


@pytest.mark.parametrize("make", [Recurrent, Encoder])
@pytest.mark.parametrize("explainer", GRADIENTS, ids=str)
def test_valid_tokens_only_and_noise_equals_a_noisy_copy(make, explainer):
    torch.manual_seed(2)
    task = text_task(make())
    found = explainer(task).values
    assert found.shape == (3, 7)
    assert (found[~task.space.valid] == 0).all()
    assert (found[task.space.valid] != 0).any()
    noisy = task.with_noise(0.3, Key(4))
    twin = copy.deepcopy(task.predictor.model)
    twin.load_state_dict({**twin.state_dict(), **dict(noisy.predictor.unwrapped.named_parameters())})
    copied = Task(twin, task.inputs, side=task.side, space=task.space, targets=task.targets)
    assert torch.allclose(explainer(noisy).values, explainer(copied).values, atol=1e-10)
    assert not torch.allclose(explainer(noisy).values, found, atol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
def test_relevance_through_an_encoder(norm_first):
    torch.manual_seed(3)
    model = Encoder(norm_first, bias=False)
    task = text_task(model)
    whole = task.with_space(Space.tokens(7, task.side["mask"]), task.fill)  # count the special token too
    values = LrpEpsilon(1e-10)(whole).values
    # without biases, and with attention weights and spreads held constant, relevance is conserved
    explained = task.outputs.gather(1, task.targets[:, None])[:, 0]
    assert torch.allclose(values.sum(-1), explained, atol=1e-5)
    noisy = task.with_noise(0.3, Key(4))
    twin = copy.deepcopy(model)
    twin.load_state_dict({**twin.state_dict(), **dict(noisy.predictor.unwrapped.named_parameters())})
    copied = Task(twin, task.inputs, side=task.side, space=task.space, targets=task.targets)
    assert torch.allclose(Lrp()(noisy).values, Lrp()(copied).values, atol=1e-9)


def test_relevance_passes_recurrent_layers():
    # where a gate lets a signal pass the signal takes all, so that without biases none is lost
    model = Recurrent().double()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "bias" in name:
                value.zero_()
    task = text_task(model)
    values = LrpEpsilon(1e-12)(task.with_space(Space.tokens(7), task.fill)).values
    explained = task.outputs.gather(1, task.targets[:, None])[:, 0]
    assert torch.allclose(values.sum(-1), explained, atol=1e-6)
    assert not torch.allclose(InputXGradient()(task).values.sum(-1), explained, atol=1e-3)
