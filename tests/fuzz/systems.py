"""All systems on small models, with settings drawn from a seed; now and then one of them is odd."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import veridical as vd
from tests.reference.small_lm import Words, small_lm
from veridical import concepts, dictionaries, fidelity, gef, meta, qge, study
from veridical.auditing import EFFORTS
from veridical.core.key import Key
from veridical.explainers.base import registry as explainer_registry
from veridical.metrics.base import registry as metric_registry

QUIET = {"progress": False}


class Draw(random.Random):
    """The chance of one call, and the plan under which its models run."""

    plan: vd.Plan | None = None
    odd: tuple[Any, ...] = ()
    precision: torch.dtype = torch.float64
    """Of the model, and so of what may be expected of its numbers."""

    def some(self, known: Any, least: int, most: int) -> list[Any]:
        """A few of these, in an order of chance."""
        known = list(known)
        return self.sample(known, min(len(known), self.randint(least, most)))

    def given(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings, now and then with one replaced by something odd."""
        if settings and self.odd and self.random() < 0.2:
            settings[self.choice(list(settings))] = self.choice(self.odd)
        return settings


def kept_to(plan: vd.Plan | None, net: nn.Module) -> nn.Module:
    """The network, which from now on refuses more rows than its plan allows, but for training."""
    # a pair at least: DeepLIFT reads a row beside its baseline
    most = None if plan is None or plan.rows is None else max(plan.rows, 2)

    def refuse(module: nn.Module, given: Any) -> None:
        if most is not None and len(given[0]) > most and not module.training:
            raise KeyError(f"{len(given[0])} rows under a plan of {most}")

    net.register_forward_pre_hook(refuse)
    return net


ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU)


def task(chance: Draw, samples: int = 6, images: bool | None = None) -> vd.Task:
    """A small float64 model with reference rows, labels and object masks."""
    act, classes = chance.choice(ACTIVATIONS), chance.choice([2, 3, 3, 4])
    if chance.random() < 0.3 if images is None else images:
        layers = [
            nn.Conv2d(1, 3, 3, padding=1),
            act(),
            # equal weights would make pixels tie but for rounding, and maps of them rank by chance
            nn.AdaptiveAvgPool2d(chance.choice([1, 2])) if images else nn.Identity(),
            nn.Flatten(),
        ]
        net, shape = nn.Sequential(*layers, nn.LazyLinear(classes)), (1, 4, 4)
    elif chance.random() < 0.25 and images is None:
        layers = [nn.Conv1d(2, 3, 3, padding=1), act(), nn.Flatten()]
        net, shape = nn.Sequential(*layers, nn.LazyLinear(classes)), (2, 5)
    else:
        width = chance.choice([3, 5, 6])
        net, shape = nn.Sequential(nn.Linear(width, 6), act(), nn.Linear(6, classes)), (width,)
    rows = torch.randn(2 * samples, *shape, dtype=torch.float64)
    net(rows.float())
    given: dict[str, Any] = {"plan": chance.plan}
    if len(shape) == 3 or chance.random() < 0.3:
        given["masks"] = torch.rand(samples, *shape[-2:] if len(shape) == 3 else shape[-1:]) < 0.5
    for name, put in (("fill", ["mean", "zero", "marginal", 0.5]), ("targets", [0, 1])):
        if chance.random() < 0.25:
            given[name] = chance.choice(put)
    net, given["train"] = net.double().eval(), rows
    if chance.random() < 0.1 and len(shape) == 1:
        given |= {"head": chance.choice(["multilabel", "regression"]), "targets": 0}
    else:
        labels = net(rows).argmax(1)
        labels[:: chance.choice([5, 100])] = 0
        given |= {"train": (rows, labels), "labels": labels[:samples]}
    return vd.Task(kept_to(chance.plan, net), rows[:samples], **given)


FAST_EXPLAINERS = (
    "gradient input_x_gradient saliency occlusion random integrated_gradients lrp_epsilon".split()
)
FAST_METRICS = "sparseness complexity pixel_flipping faithfulness_correlation monotonicity".split()
MAP_METRICS = (
    "pixel_flipping faithfulness_correlation sparseness monotonicity_correlation sufficiency".split()
)


def any_map(chance: Draw, of: vd.Task) -> Any:
    """A method by name, or a map with ties."""
    made = torch.randn(len(of), of.space.n_features, dtype=torch.float64)
    return chance.choice([*FAST_EXPLAINERS, made, made.round(), made.sign()])


# --- GEF --------------------------------------------------------------------------------------------------


def score_gef(chance: Draw) -> Any:
    name = chance.choice(["gef", "fast_gef", "gef_iso"])
    drawn = {
        "form": ["fast", "reference"],
        "distance": ["euclidean", "cosine"],
        "model_distance": ["logit", "outputs"],
        "correlation": ["spearman", "pearson"],
        "normalise": [True, False],
        "mean_then_correlate": [True, False],
        "same_direction": [True, False],
        "path": ["fitted", (0.1, 0.2, 0.4)],
    }
    given: dict[str, Any] = {which: chance.choice(drawn[which]) for which in chance.some(drawn, 0, 3)}
    given = {"levels": 3, "draws": 2, "steps": 2, "output_draws": 2, **given}
    if name == "gef_iso":
        given.pop("draws")
    return vd.score(name, task(chance), chance.choice(FAST_EXPLAINERS), seed=3, **chance.given(given))


def noise(chance: Draw) -> Any:
    one = task(chance)
    verbs: list[Callable[[], Any]] = [
        lambda: gef.find_path(one, **chance.given({"levels": 3, "draws": 2, "rule": "fitted"})),
        lambda: gef.assumptions(
            one, **chance.given({"levels": 2, "draws": 2, "mask_steps": 3, "search_draws": 2})
        ),
        lambda: gef.log_weight_noise(one),
        lambda: gef.class_task(one, **chance.given({"classes": None, "rows_per_class": 3})).outputs,
        lambda: gef.layer_activations(one, **chance.given({"layer": "0", "end": "output", "axis": 1})),
        lambda: gef.at_neuron(one, **chance.given({"layer": "0", "unit": 1, "axis": 1})).outputs,
    ]
    return chance.choice(verbs)()


def pictures_of_classes(chance: Draw) -> Any:
    one = task(chance, 4, images=True)
    return gef.visualise(
        one, **chance.given({"class_": int(one.predictions[0]), "steps": 2, "seed": 1, "views": 2})
    )


# --- QGE --------------------------------------------------------------------------------------------------


def gaps(chance: Draw) -> Any:
    metric: Any = chance.choice([name for name in metric_registry if name not in ("qge", "qrand")])
    quick = {
        "draws": 3,
        "steps": 3,
        "samples": 3,
        "masks": 8,
        "runs": 3,
        "levels": 3,
        "repeats": 2,
        "epochs": 1,
    }
    known = getattr(metric_registry.maker(metric), "__dataclass_fields__", {})
    inner = metric_registry.make(
        metric, **{k: v for k, v in quick.items() if k in known and metric != "gef_iso"}
    )
    one = task(chance)
    made = chance.choice(
        [lambda: qge.QGE(inner), lambda: qge.QGE(inner, True), lambda: qge.QRand(inner, 2)]
    )()
    return vd.score(made, one, chance.choice(FAST_EXPLAINERS), seed=chance.randrange(3))


def standings(chance: Draw) -> Any:
    one = task(chance)
    given = {
        "draws": chance.choice([4, 6]),
        "seed": 1,
        "level": 0.9,
        "exact": chance.choice([None, True, False]),
    }
    return qge.standing(one, chance.choice(MAP_METRICS), any_map(chance, one), **chance.given(given))


def rankings(chance: Draw) -> Any:
    one = task(chance, 4, images=False)
    if chance.random() < 0.5:
        return qge.sampled_study(
            one, **chance.given({"metric": None, "rankings": 8, "draws": 2, "seed": 0}), **QUIET
        )
    return qge.exhaustive_study(one[:1], **chance.given({"metric": None, "draws": 2, "seed": 0}), **QUIET)


# --- F-Fidelity -------------------------------------------------------------------------------------------


def removal(chance: Draw) -> Any:
    one = task(chance, 6)
    if chance.random() < 0.6:
        name = chance.choice(["fid_plus", "fid_minus", "rfid_plus", "rfid_minus", "ffid_plus", "ffid_minus"])
        given: dict[str, Any] = {"sizes": (0.3, 0.6), "variant": chance.choice(["indicator", "probability"])}
        if not name.startswith("fid"):
            given |= {"alpha": chance.choice([0.3, 0.5, 1.0]), "draws": 3, "bernoulli": chance.random() < 0.5}
        return vd.score(name, one, any_map(chance, one), **chance.given(given))
    few = {"draws": 2, "seed": 1}
    verbs: list[Callable[[], Any]] = [
        lambda: fidelity.finetune(
            one, **chance.given({"epochs": 1, "batch": 4, "beta": 0.2, "rate": 1e-3}), **QUIET
        ),
        lambda: fidelity.ranking_study(
            one,
            "gradient",
            **chance.given({"sizes": (0.5,), "ratios": (0.0, 0.5, 1.0), "repeats": 2, **few}),
            **QUIET,
        ),
        lambda: fidelity.explanation_size(
            one,
            any_map(chance, one),
            **chance.given({"sizes": (0.3, 0.6, 0.9), "resamples": 3, **few}),
            **QUIET,
        ),
        lambda: fidelity.robustness_table(one, **chance.given({"shares": (0.0, 0.5), **few}), **QUIET),
    ]
    return chance.choice(verbs)()


# --- meta-evaluation --------------------------------------------------------------------------------------


def reliability(chance: Draw) -> Any:
    one = task(chance, 24, images=False)
    names = chance.some(FAST_EXPLAINERS, 2, 3)
    given = {
        "draws": 1,
        "iterations": 1,
        "seed": 2,
        "resamples": 5,
        "ar": chance.choice(["published", "calibrated"]),
    }
    given["tests"] = chance.some(["ipt", "mpt", "combined"], 1, 2)
    return meta.meta_evaluate(one, chance.some(FAST_METRICS, 1, 2), names, **chance.given(given), **QUIET)


def damage(chance: Draw) -> Any:
    one = task(chance, 12)
    if chance.random() < 0.3:
        given = {
            "test": chance.choice(["ipt", "mpt"]),
            "mode": chance.choice(["nr", "ar"]),
            "draws": 3,
            "seed": 1,
        }
        return meta.calibrate(one, **chance.given(given))
    given = {"levels": (0.5, 1.0), "level": 0.9, "seed": 1}
    return meta.planted_damage(one, chance.some(MAP_METRICS, 1, 3), **chance.given(given), **QUIET)


# --- concepts ---------------------------------------------------------------------------------------------

METHODS: list[Callable[[], Any]] = [
    lambda: concepts.PCA(2),
    lambda: concepts.PCA(2, shared=True),
    lambda: concepts.KMeans(2, starts=1),
    lambda: concepts.ICA(2),
    lambda: concepts.NMF(2, steps=20),
    lambda: concepts.CDISCO(2),
    lambda: concepts.ICE(2, steps=20),
    lambda: concepts.CRAFT(2, steps=20, designs=4),
    lambda: concepts.ConceptSHAP(2, steps=3),
    lambda: concepts.MCD(2),
    lambda: concepts.SAE(2, steps=5),
]


def surf(chance: Draw) -> Any:
    one = task(chance, 16, images=chance.random() < 0.5)
    cut = concepts.split(one, **chance.given({"layer": None, "first_order": chance.random() < 0.3}))
    rows = cut.test()
    verbs: list[Callable[[], Any]] = [
        lambda: concepts.compare(
            one,
            [chance.choice(METHODS)() for _ in range(2)],
            **chance.given({"seed": 1, "seeds": 1, "layer": None}),
        ),
        lambda: concepts.sanity(one, **chance.given({"seed": 1, "draws": 2})),
        lambda: concepts.parsimony(
            chance.choice(METHODS)(), cut, **chance.given({"counts": (1, 2), "seed": 1})
        ),
        lambda: concepts.judge(
            concepts.random_concepts(cut.head, **chance.given({"seed": 1, "draw": 0})), rows, cut.head
        ),
        lambda: concepts.rank_optimum(rows, cut.head, **chance.given({"n_concepts": 2})),
        lambda: concepts.stability([chance.choice(METHODS)().fit(rows, cut.head, seed=s) for s in (0, 1)]),
    ]
    return chance.choice(verbs)()


# --- dictionaries -----------------------------------------------------------------------------------------


def sparse(chance: Draw) -> Any:
    few = {"features": 12, "dimensions": 6, "active": 2.0, "groups": 3, "seed": chance.randrange(3)}
    recipe: Any = chance.choice([dictionaries.ReLU, dictionaries.TopK, dictionaries.BatchTopK])
    given: dict[str, Any] = {"width": 12, "steps": 5, "batch": 16}
    if recipe is not dictionaries.ReLU:
        given["active"] = 2
    made = recipe(**chance.given(given))
    planted = dictionaries.Superposition(**chance.given(few))
    if chance.random() < 0.5:
        codes = planted.codes(40)
        rows = codes @ planted.directions
        found = dictionaries.train(rows, made, **chance.given({"seed": 1}), **QUIET).dictionary
        hurt = dictionaries.damaged(found, chance.choice([0.0, 0.5, 1.0]), Key(0))
        return [found, hurt, hurt.encode(rows), dictionaries.mcc(found.decoder, planted.directions)]
    bench = dictionaries.Bench.planted(planted, 32, 64, labels=3)
    names = chance.some(dictionaries.MEASURES, 1, 3)
    return dictionaries.judge(
        bench, made, **chance.given({"seeds": 2, "measures": names, "seed": 1}), **QUIET
    )


# --- prompts ----------------------------------------------------------------------------------------------

TEXTS = ["Ann sings. Bob sings.\n\nAnn has a cat.", "Bob has a dog.\n\nBob sings. Bob"]
TOKENS = Words(*TEXTS, " a", " dog", " Ann has")
LANGUAGE = small_lm(TOKENS)


def prompts(chance: Draw) -> Any:
    given: dict[str, Any] = {
        "units": chance.choice(["token", "word", "sentence", "passage", "example"]),
        "off": chance.choice(["drop", "pad", "zero", "fill"]),
        "foils": chance.choice([None, None, [" dog", " dog a"]]),
        "new_tokens": 2,
    }
    answers = chance.choice([None, [" a", " dog"], [" Ann has", " a"]])
    if given["off"] == "fill":
        given["neutral"] = "..."
    if given["off"] == "drop":
        given["questions"] = [" Ann has", " Bob has"]
    given = {"answers": answers, **chance.given(given), "plan": chance.plan}
    asked = vd.models.Generation(LANGUAGE, TOKENS, TEXTS, **given)
    if chance.random() < 0.4:
        return vd.explain(chance.choice(["occlusion", "random", "kernel_shap", "gradient"]), asked)
    if chance.random() < 0.3:
        return vd.data.prompt_checks(asked, spans=4)
    units = chance.choice([vd.models.Heads, vd.models.Mlps, vd.models.Blocks])
    inner = chance.random() < 0.3
    at = vd.data.switch(asked, units()) if inner else asked
    return vd.score(
        chance.choice(["pixel_flipping", "sparseness"]), at, chance.choice(["occlusion", "random"])
    )


# --- audits, studies, tables ------------------------------------------------------------------------------

TINY = replace(
    EFFORTS["glance"],
    name="tiny",
    samples=12,
    gef_draws=0,
    search_draws=2,
    damage=(0.5, 1.0),
    removal_draws=3,
    flip_steps=4,
    subset_runs=4,
    meta_samples=0,
    standing_samples=2,
    standing_draws=4,
    training_epochs=1,
    training_rows=24,
)


def audits(chance: Draw) -> Any:
    one = task(chance, 12, images=False)
    given: dict[str, Any] = {"explainers": chance.some(FAST_EXPLAINERS, 1, 3), "effort": TINY, "seed": 1}
    given |= {"concepts": (), "samples": None, "criteria": None, "budget": None}
    if chance.random() < 0.3:
        given["effort"] = replace(TINY, gef_draws=1, meta_samples=12, meta_draws=1, meta_iterations=1)
    found = vd.audit(one, **chance.given(given), **QUIET)
    return [found, str(found)]


def checks(chance: Draw) -> Any:
    """An audit, and the same model asked again."""
    one = task(chance, 12, images=False)
    old = vd.audit(
        one, explainers=chance.some(FAST_EXPLAINERS, 1, 2), effort=TINY, seed=1, concepts=(), **QUIET
    )
    found = vd.check(old, one, **chance.given({"explainers": None, "budget": None, "seed": 1}))
    return [found.to_frame(), str(found)]


def training(chance: Draw) -> Any:
    """A model that is trained anew without some of its rows."""
    rows = torch.randn(14, 3, dtype=torch.float64)
    classes = (rows[:, 0] > 0).long()
    classes[:2] = torch.tensor([0, 1])

    def fit(kept: Any) -> nn.Module:
        means = torch.stack([rows[kept][classes[kept] == c].mean(0).nan_to_num() for c in (0, 1)])
        net = nn.Linear(3, 2).double()
        net.weight.data, net.bias.data = means, -means.square().sum(1) / 2
        return net

    given = {"scale": chance.choice(["margin", "log_probability"]), "repeats": 1, "seed": 1}
    made = vd.data.Retraining(
        fit, (rows[:10], classes[:10]), (rows[10:], classes[10:]), **chance.given(given), **QUIET
    )
    maps = torch.randn(4, 10, dtype=torch.float64)
    verbs: list[Callable[[], Any]] = [
        made.leave_one_out,
        lambda: made.lds(maps, **chance.given({"retrainings": 5, "share": 0.5})),
        lambda: made.removal_curve(maps, **chance.given({"shares": (0.0, 0.3)})),
        lambda: made.mislabelled_auc(maps, [1, 3]),
    ]
    return chance.choice(verbs)()


def parts(chance: Draw) -> Any:
    """A picture and a table, explained together."""

    def both(picture: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        score = picture.flatten(1).mean(1) * table[:, 0] + table[:, 1]
        return torch.stack([-score, score], 1)

    given = {
        "picture": vd.data.Part(torch.randn(3, 1, 4, 4), vd.Space.patches((1, 4, 4), 2)),
        "table": vd.data.Part(torch.randn(3, 2), fill=chance.choice([0.0, 0.5])),
    }
    one = vd.data.from_parts(both, given, plan=chance.plan)
    chance.precision = torch.float32
    if chance.random() < 0.5:
        return vd.explain(chance.choice(["occlusion", "exact_shapley", "lime", "random"]), one)
    return vd.score(chance.choice(MAP_METRICS), one, any_map(chance, one))


def studies(chance: Draw) -> Any:
    plan = {} if chance.plan is None or chance.plan.rows is None else {"rows": chance.plan.rows}
    chance.precision = torch.float32  # of embedded tasks
    known = ["known/linear", "known/planted_patch", "known/planted_window", "known/interactions"]
    given: dict[str, Any] = {
        "tasks": [{"name": chance.choice(known), "samples": 3}],
        "explainers": chance.some(FAST_EXPLAINERS, 1, 2),
        "metrics": chance.some(FAST_METRICS, 1, 2),
        "seeds": [0, chance.randrange(1, 9)],
        "shard_size": chance.choice([2, 100]),
        "keep_explanations": chance.random() < 0.5,
        "plan": plan,
    }
    with tempfile.TemporaryDirectory() as where:
        made = study.run(chance.given(given), Path(where) / "s", executor="in-process", **QUIET)
        frame, checked = made.frame(), study.verify(Path(where) / "s")
        again = study.resume(Path(where) / "s", executor="in-process", **QUIET)
        if not (again.status().complete and checked.sound and again.frame().equals(frame)):
            raise AssertionError(f"a study that was just run is not sound: {checked}, {again.status()}")
        return frame.drop(columns=[c for c in frame.columns if c in ("seconds", "hash")])


def tables(chance: Draw) -> Any:
    one = task(chance)
    names = [n for n in metric_registry if n not in ("gef", "fast_gef", "gef_iso", "sufficiency_necessity")]
    given = {"seed": 1, "repeats": chance.choice([1, 2])}
    made = vd.evaluate(
        one, chance.some(FAST_EXPLAINERS, 1, 2), chance.some(names, 1, 2), **chance.given(given), **QUIET
    )
    return [made, str(made), made.to_markdown(), made.to_latex(), {k: s.ci() for k, s in made.scores.items()}]


def explanations(chance: Draw) -> Any:
    quick = {"draws": 3, "steps": 4, "samples": 4, "masks": 8, "runs": 3, "epochs": 1}
    name = chance.choice([n for n in explainer_registry if n != "sufficiency_necessity"])
    known = getattr(explainer_registry.maker(name), "__dataclass_fields__", {})
    given = {k: v for k, v in quick.items() if k in known}
    return vd.explain(name, task(chance), seed=2, **chance.given(given))


SYSTEMS: dict[str, tuple[Callable[[Draw], Any], float]] = {
    "explanations": (explanations, 12),
    "tables": (tables, 12),
    "gef": (score_gef, 10),
    "noise": (noise, 8),
    "pictures of classes": (pictures_of_classes, 2),
    "qge": (gaps, 12),
    "standing": (standings, 10),
    "rankings": (rankings, 5),
    "fidelity": (removal, 12),
    "meta": (reliability, 4),
    "damage": (damage, 6),
    "concepts": (surf, 10),
    "dictionaries": (sparse, 5),
    "prompts": (prompts, 8),
    "audit": (audits, 3),
    "study": (studies, 4),
    "check": (checks, 2),
    "training rows": (training, 3),
    "parts": (parts, 4),
}


def one(chance: Draw) -> Any:
    """One call of one of the systems."""
    name = chance.choices(list(SYSTEMS), [weight for _, weight in SYSTEMS.values()])[0]
    return SYSTEMS[name][0](chance)
