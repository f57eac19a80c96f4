"""Known answers of language models: a prompt of which one sentence decides, and heads with known work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.cached import trained
from veridical.data.causal_networks import CausalTransformer
from veridical.data.data import Data, pick
from veridical.data.generation import Generation
from veridical.data.known import EVALUATED, KnownAnswer
from veridical.data.training import Recipe
from veridical.data.word_tokens import WordTokenizer
from veridical.models.prompted import Off

SENTENCES = 6
SPEAKERS = ("Judge", "Ann", "Bob", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo")
COLOURS = ("red", "blue", "green", "black", "white", "brown")
NOTHING = "unknown"
"""The answer where no judge speaks."""
WORDS = ("...", "says ", ". ", "So ", "it ", "is ", *(f"{name} " for name in SPEAKERS), *COLOURS, NOTHING)
"""The vocabulary; its first word is the one that stands in for others."""
PIECES = 4
"""Tokens of a sentence."""
TRAINED = 4096
RECIPE = Recipe(epochs=7, rate=1e-2, batch=64, decay=1e-3)


def prompt(samples: int | None, seed: int) -> KnownAnswer:
    """Six sentences, each by another speaker with a colour, and a model that answers with the judge's.

    The foil is the colour of the sentence behind the judge's. The model was trained to stay right without
    other sentences, and to answer "unknown" without the judge's; the truth is 1 on that and 0 elsewhere.
    """
    return prompt_task(samples, seed)


def prompt_task(samples: int | None = None, seed: int = 0, off: Off = "fill") -> KnownAnswer:
    """The same where a sentence that is off is filled, dropped, or zeros."""
    every = torch.arange(EVALUATED)
    ids = pick(Data(every, every, every, every), "known/prompt", samples, seed)
    speakers, colours, place = drawn_sentences(ids)
    texts = written(speakers, colours)
    behind = (place + 1) % SENTENCES
    said, foils = (_words(colours.gather(1, at[:, None])[:, 0]) for at in (place, behind))
    here = torch.nn.functional.one_hot(place, SENTENCES).bool()
    task = Generation(
        prompt_model(),
        WordTokenizer(WORDS),
        [" ".join(parts) + " " for parts in texts],
        said,
        foils=foils,
        questions=["So it is "] * len(texts),
        off=off,
        ids=ids,
        masks=here,
        name="known/prompt",
    )
    return KnownAnswer(
        task,
        here.float(),
        winners=("occlusion", "exact_shapley", "integrated_gradients", "lime"),
        losers=("random",),
        why="only the judge's sentence decides: the model was trained to do without the others",
    )


def drawn_sentences(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Who speaks (N, S), the colours they name (N, S), and which sentence is the judge's (N,).

    Nobody else names the judge's colour: no other sentence may stand in for it.
    """
    key = Key(0) / "known" / "prompt"
    speakers = keyed.permutation(key / "speakers", ids, 0, len(SPEAKERS) - 1)[:, :SENTENCES] + 1
    place = keyed.integers(key / "place", ids, 0, 1, SENTENCES)
    said = keyed.integers(key / "said", ids, 0, 1, len(COLOURS))
    apart = 1 + keyed.integers(key / "others", ids, 0, SENTENCES, len(COLOURS) - 1)
    colours = (said + apart) % len(COLOURS)
    return speakers.scatter(1, place, 0), colours.scatter(1, place, said), place[:, 0]


def written(speakers: Tensor, colours: Tensor) -> list[list[str]]:
    """The sentences of each prompt."""
    return [
        [f"{SPEAKERS[who]} says {COLOURS[what]}." for who, what in zip(*row, strict=True)]
        for row in zip(speakers.tolist(), colours.tolist(), strict=True)
    ]


def _words(colours: Tensor) -> list[str]:
    return [COLOURS[number] for number in colours.tolist()]


class NextWord(nn.Module):
    """The logits behind the last token, which is all that is trained."""

    def __init__(self, model: CausalTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        answers: Tensor = self.model(tokens, attention_mask)
        return answers[:, -1]


def prompt_model() -> CausalTransformer:
    """The trained model; a few seconds the first time."""
    data = training_data()
    model = NextWord(CausalTransformer(len(WORDS), data.rows.shape[1] + 1, 32))
    trained("prompt", model, data, RECIPE)
    return model.model


def training_data() -> Data:
    """Prompts in which sentences are blank words, or hidden.

    Without another sentence the answer stays the judge's colour; without the judge's it is unknown.
    """
    ids = torch.arange(EVALUATED, EVALUATED + TRAINED)
    speakers, colours, place = drawn_sentences(ids)
    tokenizer = WordTokenizer(WORDS)
    texts = written(speakers, colours)
    rows = torch.tensor([tokenizer.encode(" ".join([*parts, "So it is "])) for parts in texts])
    chance = keyed.uniform(Key(0) / "known" / "prompt" / "missing", ids, 0, SENTENCES)
    silent = ids % 5 == 0
    missing = (chance < 0.2 * (ids % 4)[:, None]).scatter(1, place[:, None], silent[:, None])
    over = missing.repeat_interleave(PIECES, 1)
    over = torch.nn.functional.pad(over, (0, rows.shape[1] - over.shape[1]))
    hide = (ids % 2 == 1)[:, None]
    said = colours.gather(1, place[:, None])[:, 0] + WORDS.index(COLOURS[0])
    answers = torch.where(silent, WORDS.index(NOTHING), said)
    every = torch.arange(TRAINED)
    return Data(rows.masked_fill(over & ~hide, 0), answers, every, every, side=((~(over & hide)).long(),))
