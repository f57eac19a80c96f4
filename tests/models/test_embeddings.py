"""Text models seen from their embeddings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.gef import changed_copy, noisy
from tests.reference.small_models import Text, mlp
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.models.embeddings import EmbeddingView, embedding_layer


class Positions(nn.Module):
    """Position embeddings are registered first, and the model says which layer embeds words."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(6, 4)
        self.words = nn.Embedding(20, 4)
        self.head = nn.Linear(4, 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, token_ids: Tensor) -> Tensor:
        places = torch.arange(token_ids.shape[1])
        return self.head(torch.tanh(self.words(token_ids) + self.places(places)).mean(1))


def test_the_layer_is_what_the_model_says_else_its_first_embedding() -> None:
    assert embedding_layer(Positions()) == "words"
    assert embedding_layer(nn.Sequential(Positions())) == "0.words"
    assert embedding_layer(Text()) == "words"
    assert embedding_layer(mlp()) is None


def test_a_model_that_cannot_say_is_searched() -> None:
    class Shy(Text):
        def get_input_embeddings(self) -> nn.Module:
            raise NotImplementedError

    assert embedding_layer(Shy()) == "words"


def test_the_view_answers_as_the_model_does_and_leaves_no_hook() -> None:
    torch.manual_seed(0)
    model, tokens = Positions(), torch.randint(0, 20, (3, 6))
    view = EmbeddingView(model, "words")
    torch.testing.assert_close(view(view.embed(tokens), tokens), model(tokens))
    moved = view(view.embed(tokens) + 1, tokens)
    assert not torch.allclose(moved, model(tokens))
    assert not model.words._forward_hooks


def test_hooks_are_removed_after_an_exception() -> None:
    model, tokens = Positions(), torch.randint(0, 20, (3, 6))
    view = EmbeddingView(model, "words")
    try:
        view(torch.zeros(3, 6, 9), tokens)
    except RuntimeError:
        pass
    else:
        raise AssertionError("nine numbers a token do not fit")
    assert not model.words._forward_hooks


def test_under_other_weights_the_embeddings_are_theirs() -> None:
    torch.manual_seed(0)
    model, tokens = Positions(), torch.randint(0, 20, (3, 6))
    tensors = noisy(model, 0.5, Key(0))
    world = vd.Task(model, tokens).with_weights(tensors)
    embedded = world.at_embeddings()
    assert torch.equal(embedded.inputs, tensors["words.weight"][tokens])
    assert torch.equal(world.outputs, changed_copy(model, tensors)(tokens))
    torch.testing.assert_close(embedded.outputs, world.outputs)


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_a_bag_of_embeddings_is_explained_at_them(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding), nn.Linear(4, 3)).eval()
    ids = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    task = vd.Task(net, ids, space=vd.Space.tokens(5, ids != 0))
    at = task.at_embeddings()
    torch.testing.assert_close(at.outputs, task.outputs)
    found = vd.explain("input_x_gradient", task)
    linear = vd.Task(net, ids).outputs.gather(1, task.targets[:, None])[:, 0] - net[1].bias[task.targets]
    if mode != "max" and padding == 0:
        # a pooled sum is linear in its words
        torch.testing.assert_close(found.values.sum(1), linear.detach(), atol=1e-5, rtol=1e-4)
    assert bool((found.values[0, 3:] == 0).all())


def test_a_bag_with_offsets_or_weights_is_refused() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 3, mode="sum")

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.bag(ids, per_sample_weights=torch.ones(ids.shape))

    task = vd.Task(Weighted(), torch.tensor([[1, 2], [3, 4]]))
    with pytest.raises(NotApplicableError, match="no weights of samples"):
        vd.explain("gradient", task)
    assert vd.explain("occlusion", task).values.shape == (2, 2)
