"""Attention explainers: a slow rewrite on a tiny random BERT; other models are refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from veridical.errors import InputError, NotApplicableError
from veridical.explainers import AttentionRollout, GradientXAttention, InputXGradient
from veridical.random.keyed import Key
from veridical.values.space import Space
from veridical.values.task import Task


def bert(attention: str = "sdpa"):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, num_labels=3, initializer_range=0.3, attn_implementation=attention,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


def bert_task(model) -> Task:
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(6) < torch.tensor([[6], [4], [5], [6]])).long()
    ids = torch.randint(3, 30, (4, 6), generator=generator) * mask
    valid = mask.bool().clone()
    valid[:, 0] = False
    return Task(model, ids, side={"attention_mask": mask}, space=Space.tokens(6, valid))


def slow_rollout(task: Task, i: int) -> np.ndarray:
    model = bert("eager")
    model.load_state_dict(task.predictor.model.state_dict())
    with torch.no_grad():
        answer = model(
            task.inputs[[i]], attention_mask=task.side["attention_mask"][[i]], output_attentions=True
        )
    R = np.eye(6)
    for layer in answer.attentions:
        A = layer[0].numpy().astype(float)
        mixed = 0.5 * A.mean(0) + 0.5 * np.eye(6)
        mixed /= mixed.sum(1, keepdims=True)
        R = mixed @ R
    return R[0] * task.space.valid[i].numpy()


def slow_gradient(task: Task, i: int) -> np.ndarray:
    model = bert("eager")
    model.load_state_dict(task.predictor.model.state_dict())
    answer = model(task.inputs[[i]], attention_mask=task.side["attention_mask"][[i]], output_attentions=True)
    slopes = torch.autograd.grad(answer.logits[0, task.targets[i]], answer.attentions)
    R = np.eye(6)
    for layer, slope in zip(answer.attentions, slopes, strict=True):
        E = np.maximum(layer[0].detach().numpy() * slope[0].numpy(), 0.0).mean(0)
        R = R + E @ R
    return (R - np.eye(6))[0] * task.space.valid[i].numpy()


@pytest.mark.extras
@pytest.mark.parametrize(
    ("explainer", "slow"), [(AttentionRollout(), slow_rollout), (GradientXAttention(), slow_gradient)]
)
def test_equals_the_slow_rewrite_and_leaves_the_model_alone(explainer, slow):
    task = bert_task(bert())
    found = explainer(task, Key(0))
    assert np.allclose(found.values.numpy(), np.stack([slow(task, i) for i in range(4)]), atol=1e-6)
    wrong = slow_gradient if slow is slow_rollout else slow_rollout
    assert not np.allclose(found.values.numpy(), np.stack([wrong(task, i) for i in range(4)]), atol=1e-3)
    assert task.predictor.model.config._attn_implementation == "sdpa"
    assert found.cost.forward == 4
    assert all(not m._forward_hooks for m in task.predictor.model.modules())


@pytest.mark.extras
@pytest.mark.parametrize("explainer", [AttentionRollout(), GradientXAttention(), InputXGradient()], ids=str)
def test_noisy_weights_equal_a_noisy_copy(explainer):
    task = bert_task(bert())
    noisy = task.with_noise(0.3, Key(2))
    twin = copy.deepcopy(task.predictor.model)
    twin.load_state_dict({**twin.state_dict(), **dict(noisy.predictor.unwrapped.named_parameters())})
    copied = Task(twin, task.inputs, side=task.side, space=task.space, targets=task.targets)
    found = explainer(noisy).values
    assert torch.allclose(found, explainer(copied).values, atol=1e-5)
    assert not torch.allclose(found, explainer(task).values, atol=1e-4)


@pytest.mark.extras
def test_the_reading_and_the_target():
    task = bert_task(bert())
    assert not torch.allclose(AttentionRollout("mean")(task).values, AttentionRollout()(task).values)
    assert not torch.allclose(AttentionRollout("last")(task).values, AttentionRollout()(task).values)
    other = task.with_targets((task.targets + 1) % 3)
    assert torch.equal(AttentionRollout()(other).values, AttentionRollout()(task).values)
    assert not torch.allclose(GradientXAttention()(other).values, GradientXAttention()(task).values)


def test_other_models_are_refused():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids):
            return self.head(self.embed(ids).mean(1))

    text = Task(Bag(), torch.randint(0, 9, (2, 5)))
    with pytest.raises(NotApplicableError, match="Hugging Face"):
        AttentionRollout()(text)
    assert "text" in (GradientXAttention().why_not(Task(nn.Linear(3, 2), torch.rand(2, 3))) or "")
    with pytest.raises(InputError):
        AttentionRollout("middle")


@pytest.mark.extras
@pytest.mark.parametrize("explainer", [AttentionRollout(), GradientXAttention()])
def test_maps_at_the_embeddings_are_those_at_the_tokens(explainer):
    task = bert_task(bert())
    for world in (task, task.with_noise(0.1, Key(3))):
        at_ids, at_embeddings = explainer(world, Key(0)), explainer(world.at_embeddings(), Key(0))
        torch.testing.assert_close(at_embeddings.values, at_ids.values)
    moved = task.at_embeddings()
    moved = moved.with_inputs(moved.inputs + torch.linspace(-1, 1, 16))  # a constant would be normalised away
    assert not torch.allclose(explainer(moved, Key(0)).values, explainer(task, Key(0)).values)


@pytest.mark.extras
def test_sensitivity_of_attention_is_a_number():
    from veridical.metrics import registry

    scores = registry.make("avg_sensitivity", draws=2)(bert_task(bert()), AttentionRollout(), Key(0))
    assert scores.values.isfinite().all()
    assert (scores.values > 0).all()
