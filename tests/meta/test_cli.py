"""`veridical meta`: tables and pictures of every use, and one clear line for a mistake."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app

SMALL = "--draws 1 --iterations 1 -n 16 -e gradient -e saliency -e input_x_gradient".split()


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["meta", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_damage_says_which_metrics_are_admissible_and_why_others_are_not(tmp_path):
    metrics = ["-m", "pixel_flipping", "-m", "sparseness", "-m", "fast_gef"]
    said = " ".join(run("damage", "-t", "known/linear", "-n", "12", "-o", str(tmp_path), *metrics).split())
    assert "damage on maps of exact_shapley" in said
    assert "finished maps" in said
    frame = pd.read_csv(tmp_path / "damage.csv").set_index("metric")
    assert frame["admissible"].to_dict() == {"pixel_flipping": True, "sparseness": False, "fast_gef": False}
    assert (tmp_path / "damage.png").stat().st_size > 1000


def test_benchmark_writes_every_table_and_picture(tmp_path):
    metrics = ["-m", "sparseness", "-m", "complexity", "-m", "pixel_flipping"]
    said = run("benchmark", "-t", "digits", "-o", str(tmp_path), *metrics, *SMALL)
    assert "dependence" in said
    names = {path.name for path in tmp_path.iterdir()}
    tables, pictures = {"reliability", "by_category", "pairs"}, {"areas"}
    scores = {"meta.safetensors"}
    assert names == {f"{t}.csv" for t in tables} | {f"{p}.png" for p in pictures} | scores
    frame = pd.read_csv(tmp_path / "reliability.csv")
    assert set(frame["test"]) == {"ipt", "mpt", "mean"}
    options = {"draws": 1, "iterations": 1, "resamples": 0}
    explainers = ["gradient", "saliency", "input_x_gradient"]
    direct = vd.meta.meta_evaluate(vd.tasks.load("digits", 16), metrics[1::2], explainers, **options)
    mine = frame[frame["test"] == "mean"].set_index("metric")["mc"]
    for metric in direct.metrics:
        assert mine[metric] == pytest.approx(direct.mc(metric), nan_ok=True)
    assert vd.meta.load(tmp_path / "meta.safetensors").metrics == direct.metrics


def test_search_names_the_best_setting(tmp_path):
    tried = json.dumps({"runs": [4, 8]})
    chosen = ["faithfulness_correlation", "--settings", tried, "--test", "mpt"]
    said = run("search", *chosen, "-o", str(tmp_path), *SMALL)
    assert "most reliable" in said
    assert set(pd.read_csv(tmp_path / "settings.csv")["metric"]) == {"runs=4", "runs=8"}
    assert (tmp_path / "settings.png").stat().st_size > 1000


def test_a_grid_of_fills_runs_from_a_shell(tmp_path):
    tried = json.dumps({"fill": ["zero", "uniform_noise", "mean", 0.5]})
    chosen = ["faithfulness_correlation", "--settings", tried, "--test", "mpt"]
    run("search", *chosen, "-o", str(tmp_path), *SMALL)
    names = {"fill=zero", "fill=uniform_noise", "fill=mean", "fill=0.5"}
    assert set(pd.read_csv(tmp_path / "settings.csv")["metric"]) == names


def test_a_fill_is_its_name_or_a_number_in_every_metric():
    made = vd.metrics.registry.make("pixel_flipping", fill="mean")
    assert made == vd.metrics.registry.make("pixel_flipping", fill=vd.fills.Mean())
    assert made.from_json(made.to_json()) == made
    assert vd.metrics.registry.make("road", fill=0.5).fill == vd.fills.Constant(0.5)
    with pytest.raises(vd.errors.UnknownNameError, match="no fill"):
        vd.metrics.registry.make("pixel_flipping", fill="black")
    for wrong in (True, [1.0]):
        with pytest.raises(vd.errors.InputError, match="fill is of type Fill"):
            vd.metrics.registry.make("pixel_flipping", fill=wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "sparseness", "--settings", "[1]"], "an object such as"),
        (["search", "sparseness", "--settings", "{"], "not JSON"),
        (["benchmark", "-e", "gradient"], "at least two"),
    ],
)
def test_mistakes_are_one_clear_line(words, message):
    with pytest.raises(vd.errors.InputError, match=message):
        run(*words)
