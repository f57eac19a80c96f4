"""Attention explainers: a slow rewrite on a tiny random BERT; other models are refused."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.reference.architectures import made
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import AttentionRollout, GradientXAttention
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
    with pytest.raises(NotApplicableError, match="no attention weights"):
        AttentionRollout()(text)
    assert "this task is table" in (
        GradientXAttention().inapplicable_reason(Task(nn.Linear(3, 2), torch.rand(2, 3))) or ""
    )
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


# --- which tokens the answer reads --------------------------------------------------------------------------


class Reading(nn.Module):
    """nn.TransformerEncoder whose answer reads some of its tokens."""

    def __init__(self, read, causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
        self.embed, self.head, self.read, self.causal = nn.Embedding(12, 8), nn.Linear(8, 3), read, causal
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        return self.head(self.read(self.body(self.embed(ids), mask=mask)))


@pytest.mark.parametrize("explainer", [AttentionRollout, GradientXAttention])
@pytest.mark.parametrize(
    ("read", "named"),
    [(lambda h: h[:, 0], "first"), (lambda h: h[:, -1], "last"), (lambda h: h.mean(1), "mean")],
)
def test_the_row_that_the_answer_reads_is_found(explainer, read, named):
    task = Task(Reading(read).eval(), torch.randint(0, 12, (3, 5)))
    found = explainer()(task)
    assert found.provenance["reading"] == named
    assert torch.equal(found.values, explainer(named)(task).values)
    for other in {"first", "last", "mean"} - {named}:
        assert not torch.allclose(found.values, explainer(other)(task).values, atol=1e-6)


def test_what_reads_a_token_in_the_middle_is_refused_until_told():
    task = Task(Reading(lambda h: h[:, 2]).eval(), torch.randint(0, 12, (3, 5)))
    with pytest.raises(NotApplicableError, match=r"at tokens \[2\].*reading="):
        AttentionRollout()(task)
    assert AttentionRollout("mean")(task).values.shape == (3, 5)


def test_a_causal_model_is_not_read_at_its_first_token():
    # there the first token sees itself alone, and the map would be 1 on it whatever the text
    task = Task(Reading(lambda h: h[:, -1], causal=True).eval(), torch.randint(0, 12, (4, 6)))
    one_hot = AttentionRollout("first")(task).values
    assert torch.equal(one_hot, torch.eye(6)[:1].expand(4, -1))
    for explainer in (AttentionRollout(), GradientXAttention()):
        values = explainer(task).values
        assert bool((values[:, 1:].sum(-1) > 1e-6).all())


def test_a_planted_cue_is_found_in_a_causal_model():
    # one head that looks for token 7 and hands its value to the last place
    class Cue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 2)
            with torch.no_grad():
                self.embed.weight.zero_()
                self.embed.weight[7] = torch.tensor([4.0, 1.0])
                self.embed.weight[:, 0] += 0.1

        def forward(self, ids):
            h = self.embed(ids)[:, None]
            q = torch.ones_like(h) * torch.tensor([2.0, 0.0])
            mixed = nn.functional.scaled_dot_product_attention(q, h, h, is_causal=True)
            return mixed[:, 0, -1] @ torch.tensor([[0.0, 0.0], [1.0, -1.0]])

    ids = torch.randint(0, 7, (20, 6))
    places = torch.arange(20) % 6
    ids[torch.arange(20), places] = 7
    task = Task(Cue(), ids, targets=0)
    for explainer in (AttentionRollout(), GradientXAttention()):
        values = explainer(task).values
        # a rollout keeps half of the last token for the residual path
        found = values[:, :5].argmax(-1) if isinstance(explainer, AttentionRollout) else values.argmax(-1)
        assert bool((found == places)[places < 5].all())


@pytest.mark.extras
@pytest.mark.parametrize(("name", "named"), [("hf_bert", "first"), ("hf_distilbert", "first"),
                                             ("hf_gpt2", "last"), ("hf_llama", "last")])  # fmt: skip
def test_models_of_hugging_face_are_read_where_they_answer(name, named):
    assert AttentionRollout()(made(name)).provenance["reading"] == named


def test_a_vision_transformer_has_a_map_over_its_patches():
    task = made("vit")
    model, weights = task.model, []
    found = AttentionRollout()(task)
    originals = [layer.forward for layer in model.attention]

    def seen(original):
        def run(q, k, v, need_weights=True):
            out, w = original(q, k, v, need_weights=True, average_attn_weights=False)
            weights.append(w)
            return out, None

        return run

    for layer in model.attention:
        layer.forward = seen(layer.forward)
    with torch.no_grad():
        model(task.inputs)
    for layer, original in zip(model.attention, originals, strict=True):
        layer.forward = original
    mixing = torch.eye(17, dtype=torch.float64)
    for w in weights:
        mixing = (w.mean(1) + torch.eye(17)) / 2 @ mixing
    small = mixing[:, 0, 1:].reshape(2, 1, 4, 4)
    large = nn.functional.interpolate(small, size=(16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(found.values, large.flatten(1), rtol=0, atol=1e-9)
