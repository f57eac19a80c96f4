"""Tables 3, 4 and 5 of the SURF paper on heads that are at hand: `python -m replications.surf.run NAME`.

NAME is mnist or cifar (LeNet, ResNet-20: both tables), vgg (a second CNN, table 5), trec (MiniLM), photos
(EfficientNet-lite0: sanity and shared dictionaries), hundred (the same network on CIFAR's photos: a hundred
classes with concepts of their own), attributes (multi-label), diabetes (regression), cnn, vit and slant
(the package's own tasks of coloured digits) or segments (HU-MCD on ResNet-20). Reads $VERIDICAL_DATA; what
needs packages of its own is prepared by
`python -m replications.surf.prepared`. Prints the tables and writes them to `results/NAME.json` as they
come; `--quick` takes fewer rows and one draw of C-SHAP-Eval.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from replications.surf import data, prepared, trained
from replications.surf.cshap_eval import Training, cshap_eval, learned_measures
from veridical.concepts.materials import Materials
from veridical.errors import NotApplicableError

COUNT = 5
SMALL = {"attributes": "", "diabetes": "diabetes"} | {
    kind: f"colour_digits_{kind}" for kind in ("cnn", "vit", "slant")
}
"""Tasks that come with the package, by what they are called here."""
Note = Callable[[str, object], None]


def sanity(
    head: vd.concepts.Head,
    test: vd.concepts.Embeddings,
    train: vd.concepts.Embeddings,
    draws: int,
    note: Note,
) -> None:
    """Table 3: measures that learn nothing over 10 draws, then C-SHAP-Eval, trained on 500 rows.

    C-SHAP-Eval in the coordinates of the head, and (`plain`) of the embedding, as the paper trains it.
    """
    table = vd.concepts.sanity(test, head)
    print(table, flush=True)
    note(
        "table3",
        {
            "rows": table.to_frame().to_dict("records"),
            "ordered": {column: table.ordered("SURF", column) for column in ("mae", "emd")},
            "norms": [float(table.norms.min()), float(table.norms.max())],
        },
    )
    few = train.take(torch.arange(0, len(train), max(1, len(train) // 500)))
    table = vd.concepts.sanity(test, head, draws=draws, measures=learned_measures(few))
    print(table, flush=True)
    note("table3_learned", table.to_frame().to_dict("records"))
    plain: list[dict[str, object]] = []
    for concepts in (vd.concepts.perfect(head), vd.concepts.random_concepts(head)):
        for loss in ("cross_entropy", "l1"):
            training = Training(loss=loss, plain=True)  # type: ignore[arg-type]
            found = cshap_eval(concepts, test, head, few, training)
            print(f"as published: {found}", flush=True)
            plain.append({"setting": concepts.method, "loss": loss, **found.summary})
            note("table3_learned_as_published", plain)


def methods(
    plan: list[tuple[vd.concepts.ConceptMethod, vd.concepts.Embeddings]],
    train: vd.concepts.Embeddings,
    test: vd.concepts.Embeddings,
    head: vd.concepts.Head,
    note: Note,
) -> None:
    """Every method with its embeddings to fit on; those that do not apply say why."""
    rows: list[dict[str, object]] = []
    for method, fitted_on in plan:
        start = time.perf_counter()
        try:
            concepts = method.fit(fitted_on, head)
        except NotApplicableError as error:
            rows.append({"method": method.name, "refused": str(error)})
            print(error, flush=True)
            continue
        seconds = time.perf_counter() - start
        found = vd.concepts.judge(concepts, test, head)
        split = vd.concepts.error_split(concepts, train, test, head)
        print(f"{seconds:6.1f} s  {found}\n          {split}", flush=True)
        rows.append(
            {"method": method.name, "seconds": seconds, **found.summary}
            | {"concepts_error": split.concepts, "importances_error": split.importances}
            | {"notes": list(concepts.notes), "flagged": len(concepts.flags)}
        )
        note("table4", rows)
    if min(head.weight.shape) >= COUNT:
        best = vd.concepts.judge(vd.concepts.rank_optimum(train, head, COUNT), test, head)
        print(f"          {best}", flush=True)
        rows.append({"method": "rank-5 optimum (shared)", **best.summary})
    note("table4", rows)


def all_methods(**common: Any) -> list[vd.concepts.ConceptMethod]:
    """Every method but those that need crops or segments."""
    kinds = (
        vd.concepts.PCA,
        vd.concepts.KMeans,
        vd.concepts.ICA,
        vd.concepts.NMF,
        vd.concepts.CDISCO,
        vd.concepts.ICE,
        vd.concepts.ConceptSHAP,
        vd.concepts.MCD,
    )
    return [kind(COUNT, **common) for kind in kinds] + [vd.concepts.SAE(COUNT)]


def image_head(task: vd.Task, crop: int, draws: int, note: Note) -> None:
    """Both tables for an image classifier: CRAFT sees crops, SAE unpooled embeddings.

    The model runs where the task lies; concepts are fitted and judged on the CPU.
    """
    note("accuracy", float((task.predictions == task.labels).double().mean()))
    parts = vd.concepts.split(task)
    train, test, head = here(parts.train()), here(parts.test()), at_home(parts.head)
    unpooled = here(parts.train(spatial=True)) if parts.map_layer is not None else train
    assert task.train is not None
    crops = here(vd.concepts.crop_embeddings(parts, task.train[:: max(1, len(task.train) // 1000)], crop))
    note("collected", {"train": len(train), "test": len(test), "crops": len(crops)})
    plan = [(method, unpooled if method.name == "sae" else train) for method in all_methods()]
    sanity(head, test, train, draws, note)
    methods([*plan, (vd.concepts.CRAFT(COUNT), crops)], train, test, head, note)


def here(embeddings: vd.concepts.Embeddings) -> vd.concepts.Embeddings:
    """The embeddings on the CPU."""
    labels = None if embeddings.labels is None else embeddings.labels.cpu()
    return vd.concepts.Embeddings(
        embeddings.values.cpu(), embeddings.outputs.cpu(), embeddings.ids.cpu(), labels
    )


def at_home(head: vd.concepts.Head) -> vd.concepts.Head:
    """The head on the CPU."""
    return replace(head, weight=head.weight.cpu(), bias=head.bias.cpu())


def given_head(
    train: vd.concepts.Embeddings, test: vd.concepts.Embeddings, head: vd.concepts.Head, note: Note
) -> None:
    """Every method on embeddings that are at hand, one dictionary an output."""
    methods(
        [(method, train) for method in (*all_methods(), vd.concepts.CRAFT(COUNT))], train, test, head, note
    )


def small_task(task: vd.Task, note: Note) -> None:
    """Every method on what it is fitted on, where the task has that."""
    parts = vd.concepts.split(task)
    supply = Materials({}, parts)
    plan: list[tuple[vd.concepts.ConceptMethod, vd.concepts.Embeddings]] = []
    for method in (*all_methods(), vd.concepts.CRAFT(COUNT), vd.concepts.HUMCD(COUNT)):
        try:
            plan.append((method, supply.rows(method)))
        except NotApplicableError as error:
            print(error, flush=True)
    methods(plan, parts.train(), parts.test(), parts.head, note)


def photos(note: Note) -> None:
    """One photo a class: shared dictionaries only, each fitted on what it wants of 200 photos.

    C-SHAP weighs classes by their own rows, of which there is one.
    """
    train, test, head = prepared.photos()
    note("accuracy", float((test.outputs.argmax(1) == test.labels).double().mean()))
    crops, cut = prepared.photo_parts(head)
    supply = Materials.of(replace(train, kind="positions"), {"crops": crops, "segments": cut})
    kinds = (
        vd.concepts.PCA,
        vd.concepts.KMeans,
        vd.concepts.ICA,
        vd.concepts.NMF,
        vd.concepts.CDISCO,
        vd.concepts.ICE,
        vd.concepts.CRAFT,
    )
    shared: list[vd.concepts.ConceptMethod] = [kind(k, shared=True) for k in (COUNT, 25) for kind in kinds]
    shared += [
        vd.concepts.PCA(100, shared=True),
        vd.concepts.MCD(COUNT, shared=True),
        vd.concepts.HUMCD(COUNT, shared=True),
    ]
    rows: list[dict[str, object]] = []
    for method in (*shared, vd.concepts.SAE(COUNT, steps=500)):
        start = time.perf_counter()
        concepts = supply.concepts(method, head, 0)
        seconds = time.perf_counter() - start
        for positions in ("pooled", "each"):
            found = vd.concepts.judge(concepts, test, head, positions)  # type: ignore[arg-type]
            print(f"{seconds:6.1f} s {method.name} {method.n_concepts} {positions}: {found}", flush=True)
            rows.append({"method": method.name, "K": method.n_concepts, "positions": positions})
            rows[-1] |= {"seconds": seconds, **found.summary}
            note("shared", rows)
    table = vd.concepts.sanity(test, head)
    print(table, flush=True)
    note("table3", {"rows": table.to_frame().to_dict("records"), "norms": head.norms.aminmax()[0].item()})
    note("ordered", {column: table.ordered("SURF", column) for column in ("mae", "emd")})
    for plain in (False, True):  # a thousand classes: minutes each
        training = Training(loss="l1", plain=plain)
        found = cshap_eval(vd.concepts.perfect(head), test.as_pooled(), head, train.as_pooled(), training)
        print(f"plain={plain}: {found}", flush=True)
        note(f"cshap_eval_l1_perfect{'_as_published' if plain else ''}", found.summary)


def segments(task: vd.Task, note: Note) -> None:
    """HU-MCD: subspaces of superpixels of 1,000 train images, beside MCD on the same images as a whole."""
    labels = prepared.load("segments")["labels"]
    assert task.train is not None
    images = task.train[: len(labels)]
    parts = vd.concepts.split(task)
    cut = vd.concepts.segment_embeddings(parts, images, lambda x: labels.long())
    note("segments", {"images": len(images), "segments": len(cut)})
    whole = parts.collect(images)
    plan: list[tuple[vd.concepts.ConceptMethod, vd.concepts.Embeddings]] = [
        (vd.concepts.HUMCD(COUNT), cut),
        (vd.concepts.MCD(COUNT), whole),
    ]
    methods(plan, parts.train(), parts.test(), parts.head, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["mnist", "cifar", "vgg", "trec", "photos", "hundred", "segments", *SMALL]
    parser.add_argument("names", nargs="+", choices=names)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--device", default="cpu", help="where image models run")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    for name in given.names:
        run(name, given)


def run(name: str, given: argparse.Namespace) -> None:
    found: dict[str, object] = {"name": name, "quick": given.quick, "threads": torch.get_num_threads()}
    began = time.perf_counter()

    def note(part: str, value: object) -> None:
        found[part] = value
        found["seconds"] = time.perf_counter() - began
        (given.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")

    sizes = (2000, 1000) if given.quick else (10_000, 10_000)
    if name in ("mnist", "cifar", "vgg"):
        note("rows", list(sizes))
        task = trained.vgg(*sizes, given.device) if name == "vgg" else getattr(data, name)(*sizes)
        image_head(task.to(given.device), 14 if name == "mnist" else 16, 1 if given.quick else 3, note)
    elif name == "trec":
        train, test, head = prepared.trec()
        note("accuracy", float((test.outputs.argmax(1) == test.labels).double().mean()))
        given_head(train, test, head, note)
        sanity(head, test, train, 1, note)
    elif name == "photos":
        photos(note)
    elif name == "hundred":
        train, test, head = prepared.hundred()
        counts = head.membership(train.outputs).sum(0)
        note(
            "rows", {"train": len(train), "test": len(test), "of a class": [int(n) for n in counts.aminmax()]}
        )
        table = vd.concepts.sanity(test, head)
        note("table3", {"rows": table.to_frame().to_dict("records"), "norms": head.norms.aminmax()[0].item()})
        note("ordered", {column: table.ordered("SURF", column) for column in ("mae", "emd")})
        fewer = [
            vd.concepts.ConceptSHAP(COUNT, coalitions=2048) if m.name == "c-shap" else m
            for m in all_methods()
        ]
        methods([(method, train) for method in fewer], train, test, head, note)
    elif name == "segments":
        segments(data.cifar(prepared.SEGMENTED, 1000), note)
    else:
        task = trained.attributes() if name == "attributes" else vd.tasks.load(SMALL[name])
        if name == "attributes":
            note("accuracy", float(((task.outputs > 0) == (task.labels > 0.5)).double().mean()))
        small_task(task, note)


if __name__ == "__main__":
    main()
