"""Write examples/*.ipynb from the cells below, without outputs.

`python scripts/make_notebooks.py` after a change; `--check` only tells whether to. Cells begin with a line
`%% text` or `%% code`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

IMAGE = """
%% text
# Images: which explanation of a digit can be believed?
A small network reads handwritten digits. We explain it in four ways, look at the maps, and ask the model
which of them it agrees with.
%% code
import veridical as vd

task = vd.tasks.load("digits")[:48]
task
%% text
Four maps of one digit. They differ, and nothing in the pictures says which is right. `random` is a control.
%% code
from matplotlib import pyplot

names = ["gradient", "integrated_gradients", "occlusion", "random"]
maps = {name: vd.explain(name, task) for name in names}
figure, axes = pyplot.subplots(1, 4, figsize=(11, 2.8))
for ax, (name, explanation) in zip(axes, maps.items()):
    explanation.plot(0, ax, task.inputs)
    ax.set_title(name)
%% text
Two metrics that share no assumption: one removes pixels, one disturbs weights. Better is `pixel_flipping` low
and `gef` high.
%% code
table = vd.evaluate(task, names, ["pixel_flipping", "gef", "sparseness"], seed=0)
table.to_frame()
%% text
A mean without an interval is no result. The control must lose, and it does.
%% code
for name in names:
    flipping, moving = table[name, "pixel_flipping"], table[name, "gef"]
    print(f"{name:22s} flipping {flipping.mean():.3f} {flipping.ci()}")
    print(f"{'':22s} gef      {moving.mean():.3f} {moving.ci()}")
assert table["random", "pixel_flipping"].mean() > table["integrated_gradients", "pixel_flipping"].mean()
%% text
Where does the best map stand among *all* rankings of the same features? With eight patches the answer is
exact.
%% code
patches = task[:4].with_space(vd.Space.patches((1, 8, 8), (4, 2)))
place = vd.qge.standing(patches, "pixel_flipping", "integrated_gradients")
place.plot(sample=0)
place.percentile
"""

TABULAR = """
%% text
# Tables: attributions of a random forest
A fitted scikit-learn model, a data frame, and no gradients.
%% code
import veridical as vd
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

data = load_wine(as_frame=True)
train, test, y_train, y_test = train_test_split(data.data, data.target, random_state=0, stratify=data.target)
forest = RandomForestClassifier(50, random_state=0).fit(train, y_train)
task = vd.Task(forest, test.head(24), labels=y_test.head(24).to_numpy(), train=train, fill="mean")
print(task)
print(vd.applicable(task))
%% code
shap = vd.explain("kernel_shap", task)
shap.top(0, 5)
%% text
The fill is part of the question. Score with two of them: what holds under both is not the fill's doing.
%% code
names = ["kernel_shap", "feature_ablation", "random"]
for fill in ("mean", "marginal"):
    filled = vd.Task(forest, test.head(24), train=train, fill=fill)
    print(fill)
    print(vd.evaluate(filled, names, ["pixel_flipping", "faithfulness_correlation"]))
%% text
A task whose answer is known tells whether the chain works at all: a linear model that uses five columns of
twelve.
%% code
known = vd.tasks.known("known/linear")
some = known.task[:32]
true = vd.score("faithfulness_correlation", some, known.truth[:32]).mean()
chance = vd.score("faithfulness_correlation", some, "random").mean()
print(f"truth {true:.2f}, random {chance:.2f}")
assert true > 0.8 > chance
"""

SERIES = """
%% text
# Series: a window planted in noise
The class of a series is coded in one window at a random place. So the answer is known: explanations should
point there.
%% code
import veridical as vd

known = vd.tasks.known("known/planted_window")
task, truth = known.task[:32], known.truth[:32]
print(task)
print(known.why)
%% code
from matplotlib import pyplot

names = ["gradient", "integrated_gradients", "occlusion"]
figure, axes = pyplot.subplots(len(names) + 1, 1, figsize=(9, 6), sharex=True)
axes[0].plot(truth[0].abs().reshape(-1).numpy())
axes[0].set_title("where the code lies")
for ax, name in zip(axes[1:], names):
    vd.explain(name, task).plot(0, ax)
    ax.set_title(name)
figure.tight_layout()
%% text
The planted window is the object, so localisation metrics apply, and they can be compared with metrics that
ask the model.
%% code
table = vd.evaluate(
    task, [*names, "random"], ["relevance_mass_accuracy", "pixel_flipping", "faithfulness_correlation"]
)
print(table)
mass = {name: table[name, "relevance_mass_accuracy"].mean() for name in table.explainers}
assert mass["random"] < mass["integrated_gradients"]
%% text
Which of these metrics should be believed on this model? Meta-evaluation asks whether their scores stay under
slight noise and react to disruptive noise.
%% code
result = vd.meta_evaluate(
    task[:24],
    ["pixel_flipping", "sparseness"],
    ["gradient", "integrated_gradients"],
    tests=("ipt",),
    draws=1,
    iterations=1,
)
result
"""

TEXT = """
%% text
# Text: are these the words?
A convolution over words judges product reviews. Tokens are the features; padding never is.
%% code
import veridical as vd

task = vd.tasks.load("reviews")[:32]
maps = vd.explain("integrated_gradients", task)
for sample in range(3):
    print(maps.top(sample, 4))
%% text
`comprehensiveness` removes the most relevant words (the answer should fall: high), `text_sufficiency` keeps
only them (it should stay: low).
%% code
names = ["integrated_gradients", "feature_ablation", "lime", "random"]
table = vd.evaluate(task, names, ["comprehensiveness", "text_sufficiency"])
print(table)
assert table["random", "comprehensiveness"].mean() < table["feature_ablation", "comprehensiveness"].mean()
%% text
The same on a task with planted cue words, where the truth can be scored as well.
%% code
known = vd.tasks.known("known/planted_tokens")
some = known.task[:32]
for name in ("comprehensiveness", "text_sufficiency"):
    print(name, vd.score(name, some, known.truth[:32]).mean(), vd.score(name, some, "random").mean())
%% text
Does the explanation follow the model when its weights are disturbed?
%% code
scores = vd.score("gef", task, "integrated_gradients", draws=3)
print(scores)
print({name: float(scores.details[name].nanmean()) for name in ("ceiling", "partial")})
vd.gef.plot_path(scores)
"""

CONCEPTS = """
%% text
# Concepts: do they give the outputs back?
Concept methods find directions in the last embedding and weigh them. SURF carries the claim out: a linear
surrogate from the concepts, compared with all of the model's outputs.
%% code
import veridical as vd

task = vd.tasks.load("digits")
parts = vd.surf.split(task)
train, test, head = parts.train(), parts.test(), parts.head
print(parts.layer, tuple(head.weight.shape))
%% text
Can the measure be trusted? Random importances and random directions must make it worse, each in turn.
%% code
table = vd.surf.sanity(task, draws=5, measures=("ICE-Eval", "SURF"))
print(table)
assert table.ordered("SURF", "mae") == 1
%% text
Several methods with five concepts a class, and whose fault their error is.
%% code
methods = [vd.surf.PCA(), vd.surf.KMeans(), vd.surf.NMF(), vd.surf.ICE(), vd.surf.CDISCO()]
found = vd.surf.compare(task, methods)
print(found)
%% text
How many concepts are worth reading? The ring marks the plateau.
%% code
curve = vd.surf.parsimony(vd.surf.PCA(), train, test, head, counts=(1, 2, 4, 8))
curve.plot()
print(curve)
%% text
What the concepts of class 3 look like: the images that activate each most, and its importance.
%% code
concepts = vd.surf.PCA(3).fit(train, head)
vd.surf.concept_grid(concepts, test, head, task.inputs, output=3);
"""

NOTEBOOKS = {"image": IMAGE, "tabular": TABULAR, "series": SERIES, "text": TEXT, "concepts": CONCEPTS}


def notebook(source: str) -> str:
    """The JSON of a notebook with these cells; ids follow the place, so that nothing changes by itself."""
    cells = []
    for number, part in enumerate(source.strip().split("%% ")[1:]):
        kind, _, body = part.partition("\n")
        make = new_markdown_cell if kind == "text" else new_code_cell
        cells.append(make(body.strip(), id=f"cell-{number}"))
    book = new_notebook(cells=cells)
    book.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.validate(book)
    return nbformat.writes(book) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a notebook is stale")
    check = parser.parse_args().check
    stale = []
    for name, source in NOTEBOOKS.items():
        path, text = EXAMPLES / f"{name}.ipynb", notebook(source)
        if not path.is_file() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    print(f"out of date: {', '.join(stale)}" if stale else "notebooks are up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
