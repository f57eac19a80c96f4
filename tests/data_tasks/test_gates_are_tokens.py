"""Gates of tokens under an embedding fill are the ordinary token task: the same bits, whoever asks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_lm import SmallLM, Words, small_lm
from veridical.models.prompts import PromptModel
from veridical.perturb.fills import Token
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given

TEXTS = ["Ann has a cat", "Bob has a dog", "It rains today Bob", "Tom likes a cake"]
TOKENS = Words(*TEXTS)
PLACES = 4


class TokenTask(nn.Module):
    """Token ids in, the two columns of a generation out: what the gates are compared with."""

    def __init__(self, gated: PromptModel) -> None:
        super().__init__()
        self.model = gated.model
        self.has_foil, self.one_pass = True, True
        self.dear = True

    def forward(self, tokens: Tensor, **side: Tensor) -> Tensor:
        logits = self.model(tokens, side["attended"].long(), (side["attended"].long().cumsum(1) - 1))[:, -1:]
        logs = logits.log_softmax(-1)
        response = logs.gather(-1, side["answer"][..., None])[..., 0].sum(1)
        response = response - logs.gather(-1, side["foil"][..., None])[..., 0].sum(1)
        return torch.stack([response, (logits.argmax(-1) == side["predicted"]).to(response).sum(1)], 1)


def both() -> tuple[vd.Task, vd.Task]:
    model: SmallLM = small_lm(TOKENS, dtype=torch.float32)
    answers, foils = [" dog", " cat", " a", " has"], [" cat", " dog", " has", " a"]
    gates = vd.models.Generation(
        model, TOKENS, TEXTS, answers, foils=foils, units="token", plan=vd.Plan(rows=8)
    )
    side = gates.side
    assert isinstance(side, dict)
    tokens = vd.Task(
        TokenTask(gates.predictor.source.module),
        side["tokens"],
        side={name: side[name] for name in ("attended", "answer", "foil", "predicted")},
        space=vd.Space.tokens(PLACES),
        fill=Token(TOKENS.encode("...")[0]),
        head="generation",
        targets=torch.zeros(4, dtype=torch.int64),
        plan=vd.Plan(rows=8),
    )
    return gates, tokens


def test_probe_gives_the_same_bits():
    gates, tokens = both()
    masks = torch.tensor([[True, False, False, True], [False, True, True, False]])
    assert torch.equal(probe(gates, Given(masks)), probe(tokens, Given(masks)))
    assert torch.equal(gates.outputs, tokens.outputs)


def test_metrics_give_the_same_bits():
    gates, tokens = both()
    for name in ("kernel_shap", "occlusion", "exact_shapley", "lime"):
        assert torch.equal(vd.explain(name, gates).values, vd.explain(name, tokens).values), name
    maps = vd.explain("kernel_shap", gates), vd.explain("kernel_shap", tokens)
    judges = ("pixel_flipping", "insertion", "fid_plus", "fid_minus", "rfid_plus", "faithfulness_correlation")
    for metric in (*judges, vd.qge.QGE("pixel_flipping")):
        ours, theirs = (
            vd.score(metric, task, each) for task, each in zip((gates, tokens), maps, strict=True)
        )
        assert torch.equal(ours.values.nan_to_num(-9.0), theirs.values.nan_to_num(-9.0)), metric


def test_gef_gives_the_same_bits():
    """Of a method that asks by masks; weights are those of one model under other names of its parts."""
    gates, tokens = both()
    metric = vd.gef.GEF(levels=2, draws=2, path=(0.2, 0.4, 0.6))
    ours, theirs = (vd.score(metric, task, "occlusion") for task in (gates, tokens))
    assert torch.equal(ours.values, theirs.values)


def test_standing_gives_the_same_bits():
    gates, tokens = both()
    for metric in ("pixel_flipping", "faithfulness_correlation"):
        ours, theirs = (
            vd.qge.standing(task, metric, vd.explain("kernel_shap", task), draws=20)
            for task in (gates, tokens)
        )
        assert torch.equal(ours.percentile, theirs.percentile)
