"""Plant deliberate errors in the formulas, one at a time, and see whether the tests notice.

`python scripts/mutants.py [NAME ...]` patches a copy of the package and runs the tests that should fail. Exit
status 1 says that an error survived. The tests of each formula plant further ones in its arguments; these
change the code itself.
"""

from __future__ import annotations

import compileall
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "veridical"


@dataclass(frozen=True)
class Mutant:
    """An error: the text that is right, the text that is wrong, and where a test should notice."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str
    pick: str = ""
    """A pytest expression, where a file holds far more than is needed."""


MUTANTS = (
    Mutant(
        "atlas: a tie is a duel won",
        "atlas/measures.py",
        "won = torch.where(gap.abs() <= ties, 0.5,",
        "won = torch.where(gap.abs() <= ties, 1.0,",
        "atlas/test_measures.py",
        "duels",
    ),
    Mutant(
        "atlas: chance counts as the maps' doing",
        "atlas/measures.py",
        ".mean() - chance / seeds)",
        ".mean())",
        "atlas/test_measures.py",
        "noise",
    ),
    Mutant(
        "atlas: features that matter alike count as pairs",
        "atlas/bench.py",
        ".abs() > 0  # NaN",
        ".abs() >= 0  # NaN",
        "atlas/test_measures.py",
        "nearness",
    ),
    Mutant(
        "atlas: all maps of a method are damaged by one draw",
        "atlas/damaged_methods.py",
        "replace(explanation, ids=content)",
        "explanation",
        "atlas/test_measures.py",
        "damaged_method",
    ),
    Mutant(
        "atlas: who sees noise need not see places",
        "atlas/verdicts.py",
        """_above(row["power_low"], COIN) and _above(row["permuted_low"], COIN)""",
        """_above(row["power_low"], COIN)""",
        "atlas/test_atlas.py",
        "rule",
    ),
    Mutant(
        "dictionaries: codes are not cut at zero",
        "surf/dictionary/recipes.py",
        "return found.values.clamp(min=0), found.indices",
        "return found.values, found.indices",
        "dictionaries/test_training.py",
        "by_hand",
    ),
    Mutant(
        "dictionaries: atoms keep the length they grow to",
        "surf/dictionary/run.py",
        "self.decoder /= self.decoder.norm(dim=-1, keepdim=True).clamp(min=1e-12)",
        "pass",
        "dictionaries/test_training.py",
        "by_hand or length_one",
    ),
    Mutant(
        "dictionaries: a resumed run starts with the full rate",
        "surf/dictionary/run.py",
        "self.decay.last_epoch = step",
        "self.decay.last_epoch = 0",
        "dictionaries/test_training.py",
        "same_bits",
    ),
    Mutant(
        "dictionaries: the centre has no gradient through a wide encoder",
        "surf/dictionary/run.py",
        "offset = self.bias - self.encoder @ (self.centre - here)",
        "offset = self.bias",
        "dictionaries/test_training.py",
        "gathered",
    ),
    Mutant(
        "dictionaries: MCC without chance",
        "dictionaries/truth.py",
        "return (value - chance) / (1 - chance)",
        "return value",
        "dictionaries/test_truth.py",
        "random_atoms",
    ),
    Mutant(
        "dictionaries: dead atoms count as unique",
        "dictionaries/truth.py",
        "nearest = near[live].argmax(1)",
        "nearest = near.argmax(1)",
        "dictionaries/test_truth.py",
        "by_hand",
    ),
    Mutant(
        "dictionaries: children fire without their parents",
        "dictionaries/planted.py",
        "fires[:, above] &= fires[:, self.parents[above]]",
        "pass",
        "dictionaries/test_truth.py",
        "hierarchy",
    ),
    Mutant(
        "dictionaries: explained variance around zero",
        "dictionaries/measures/reconstruction.py",
        "bench.test - bench.train.mean(0)",
        "bench.test",
        "dictionaries/test_measures.py",
        "the_mean",
    ),
    Mutant(
        "dictionaries: TPP without the other probes",
        "dictionaries/measures/removal.py",
        "found.append(drop[:, number] - others.nanmean(1))",
        "found.append(drop[:, number])",
        "dictionaries/test_measures.py",
        "tpp",
    ),
    Mutant(
        "dictionaries: absorbed though its own atom fires",
        "dictionaries/measures/removal.py",
        "absorbed = silent & (carried > 0)",
        "absorbed = (carried > 0)",
        "dictionaries/test_measures.py",
        "row_by_row",
    ),
    Mutant(
        "dictionaries: a one-sided test counts the wrong side",
        "dictionaries/statistics.py",
        "(gaps >= seen - slack)",
        "(gaps <= seen + slack)",
        "dictionaries/test_judgement.py",
        "permutation",
    ),
    Mutant(
        "dictionaries: power is left out of the smallest difference",
        "dictionaries/statistics.py",
        "t.ppf(1 - level / 2, free) + t.ppf(power, free)",
        "t.ppf(1 - level / 2, free)",
        "dictionaries/test_judgement.py",
        "four_times",
    ),
    Mutant(
        "dictionaries: truth is not asked for a verdict",
        "dictionaries/trust.py",
        'return "use"\n    return "separates only" if separates',
        'return "use"\n    return "use" if separates',
        "dictionaries/test_judgement.py",
        "need_both",
    ),
    Mutant(
        "dictionaries: effects of atoms that stay on",
        "dictionaries/measures/effect.py",
        "effects = answers[:, :1] - answers[:, 1:]",
        "effects = answers[:, 1:]",
        "dictionaries/test_measures.py",
        "effect",
    ),
    Mutant(
        "controls: magnitude in raw units",
        "explainers/controls_input.py",
        ".abs() / spread(task)",
        ".abs()",
        "explainers/test_controls_input.py",
        "slow_rewrite",
    ),
    Mutant(
        "audit: prices forget that subsets are few",
        "audit/prices.py",
        "return min(self.first + (maps - 1) * self.more + maps_rows, self.most)",
        "return self.first + (maps - 1) * self.more + maps_rows",
        "audit/test_jobs.py",
        "all_subsets",
    ),
    Mutant(
        "padding: positions of the tokens that are left are lost",
        "model/padding.py",
        "return self.answer(tokens.gather(1, places), places)",
        "return self.answer(tokens.gather(1, places))",
        "model/test_padding.py",
        "fewer_columns or found_by_asking",
    ),
    Mutant(
        "audit: the best of draws is beaten, not each",
        "audit/units.py",
        "torch.stack(each).mean((0, 1))",
        "torch.stack(each).amax(0).mean(0)",
        "audit/test_units.py",
        "slow_rewrite or mean_of_draws",
    ),
    Mutant(
        "audit: one test passed is enough",
        "audit/evidence.py",
        "return max((test.p for test in tests), default=1.0)",
        "return min((test.p for test in tests), default=1.0)",
        "audit/test_units.py",
        "largest_p or not_reached",
    ),
    Mutant(
        "audit: the swap never looks at the other model",
        "audit/swap.py",
        "[(theirs, rival) for rival in there]",
        "[(own, rival) for rival in here]",
        "audit/test_swap.py",
        "falls_apart",
    ),
    Mutant(
        "audit: copies keep parameters without an initialisation",
        "model/other_models.py",
        "return value.detach().flatten()[order.to(value.device)].view_as(value)",
        "return value.detach()",
        "audit/test_swap.py",
        "permuted or keyed",
    ),
    Mutant(
        "audit: too few samples still give a verdict",
        "audit/evidence.py",
        "FEWEST = 24\n",
        "FEWEST = 2\n",
        "audit/test_verdict.py",
        "below_24",
    ),
    Mutant(
        "names: one loads the files of all",
        "registry.py",
        "        name_index.load(self.homes, name, table)\n",
        "        self._load_all()\n",
        "test_import.py",
        "first_score",
    ),
    Mutant(
        "names: one of ours can be taken before its file is loaded",
        "registry.py",
        "            name_index.load(self.homes, name, self._makers)  # so",
        "            pass  # so",
        "test_import.py",
        "is_taken",
    ),
    Mutant(
        "names: one in two files comes from either",
        "name_index.py",
        "for name, modules in homes.items() if len(modules) == 1",
        "for name, modules in homes.items() if modules",
        "test_name_index.py",
        "two_files",
    ),
    Mutant(
        "bounds: a number outside them is taken",
        "settings.py",
        "all(value in bound for bound in bounds)",
        "True",
        "test_allowed.py",
    ),
    Mutant(
        "bounds: an end that is left out counts",
        "allowed.py",
        " and value not in self.without",
        "",
        "test_allowed.py",
    ),
    Mutant(
        "store: the digest is not checked",
        "values/sealed.py",
        "    if content[at : at + len(BLANK)] != digest.encode():\n",
        "    if False:\n",
        "study/test_damage.py",
        "flipped",
    ),
    Mutant(
        "store: the digest is of the first half",
        "values/sealed.py",
        "    made.update(view[at + len(BLANK) :])\n",
        "",
        "values/test_sealed.py",
        "every_bit",
    ),
    Mutant(
        "store: the address of a file is not checked",
        "values/sealed.py",
        "        if value is not None and found.get(name) != value:\n",
        '        if value is not None and name != "address" and found.get(name) != value:\n',
        "study/test_damage.py",
        "copied",
    ),
    Mutant(
        "store: the address of a cell is not checked",
        "study/tables.py",
        "kind=KIND, address=address, rows=rows",
        "kind=KIND, rows=rows",
        "study/test_damage.py",
        "copied and cells",
    ),
    Mutant(
        "store: the rows of a cell are not counted",
        "study/tables.py",
        "kind=KIND, address=address, rows=rows",
        "kind=KIND, address=address",
        "study/test_damage.py",
        "shortened and cells",
    ),
    Mutant(
        "store: the rows of a map are not counted",
        "study/store.py",
        "            sealed.agree(header, source, rows=job.samples)\n",
        "",
        "study/test_damage.py",
        "shortened and explanations",
    ),
    Mutant(
        "store: another kind of file is taken",
        "values/sealed.py",
        "    agree(found, source, kind=kind, address=address)\n",
        "    agree(found, source, address=address)\n",
        "values/test_sealed.py",
        "wrong_place",
    ),
    Mutant(
        "store: a file of a later version is taken",
        "values/sealed.py",
        '    if found["format"] > version:\n',
        "    if False:\n",
        "values/test_sealed.py",
        "wrong_place",
    ),
    Mutant(
        "store: what lies there counts as done, whole or not",
        "study/running.py",
        "            if wrong is None:\n                continue\n",
        "            continue\n",
        "study/test_damage.py",
        "truncated",
    ),
    Mutant(
        "store: a damaged map of a finished study stays away",
        "study/running.py",
        "            if self.counts.left or self.damaged:\n",
        "            if self.counts.left:\n",
        "study/test_damage.py",
        "emptied",
    ),
    Mutant(
        "store: foreign files are not named",
        "study/store.py",
        "if name not in known]",
        "if False]",
        "study/test_damage.py",
        "foreign",
    ),
    Mutant(
        "store: a damaged plan ends the study",
        "study/relabelling.py",
        "    except FormatError:\n        return 0\n",
        "    except FileNotFoundError:\n        return 0\n",
        "study/test_damage.py",
        "damaged_plan",
    ),
    Mutant(
        "store: a damaged record of a failure ends the reading",
        "study/store.py",
        "    except FormatError as error:\n        found = {",
        "    except FileNotFoundError as error:\n        found = {",
        "study/test_damage.py",
        "record_of_a_failure",
    ),
    Mutant(
        "store: what a full disk cut short stays",
        "values/sealed.py",
        "                part.unlink(missing_ok=True)\n",
        "                pass\n",
        "values/test_sealed.py",
        "leave_nothing",
    ),
    Mutant(
        "store: a link is followed",
        "values/sealed.py",
        "            os.replace(part, path)\n",
        "            path.write_bytes(part.read_bytes())\n",
        "values/test_sealed.py",
        "links",
    ),
    Mutant(
        "lease: another study's is not minded",
        "study/lease.py",
        "            if not taken:\n",
        "            if True:\n",
        "study/test_damage.py",
        "in_use",
    ),
    Mutant(
        "lease: the same study is kept out too",
        "study/lease.py",
        'if other["plan"] != self._about["plan"]]',
        "]",
        "study/test_damage.py",
        "in_use",
    ),
    Mutant(
        "lease: the dead keep the living out",
        "study/lease.py",
        "            if _lives(note):\n",
        "            if True:\n",
        "study/test_damage.py",
        "dead_run",
    ),
    Mutant(
        "lease: the heart beats once",
        "study/lease.py",
        "        while not self._stop.wait(BEAT_SECONDS):\n            try:\n                self._write()",
        "        while not self._stop.wait(BEAT_SECONDS):\n            try:\n                pass",
        "study/test_damage.py",
        "renewed",
    ),
    Mutant(
        "run: a job of another plan is carried out",
        "study/worker_state.py",
        "        if self.plan.address(job) != job.address:\n",
        "        if False:\n",
        "study/test_run.py",
        "another_plan",
    ),
    Mutant(
        "run: workers read the plan that lies in the folder",
        "study/worker_state.py",
        "read_plan(self.folder, context.plan)",
        "read_plan(self.folder)",
        "study/test_run.py",
        "own_run",
    ),
    Mutant(
        "limits: seconds are not counted",
        "study/limits.py",
        "    if most is not None and seconds > most:\n",
        "    if False:\n",
        "study/test_limits.py",
        "handler",
    ),
    Mutant(
        "study file: aliases are not written out",
        "study/study_file.py",
        '        refuse_more("yaml_nodes", _unfolded(root, source), source)\n',
        "",
        "test_security.py",
        "fill_the_machine and self",
    ),
    Mutant(
        "report: a changed table goes unnoticed",
        "report/chain.py",
        "        elif digest_of_bytes(get(path)) != expected:\n",
        "        elif False:\n",
        "report/test_chain.py",
        "changed_or_missing",
    ),
    Mutant(
        "report: links that lead elsewhere",
        "report/chain.py",
        '    if digest(links) != told.get("digest"):\n',
        "    if False:\n",
        "report/test_chain.py",
        "changed_report",
    ),
    Mutant(
        "gini: off by one",
        "functional/concentration.py",
        "(2 * rank - count - 1) * ascending",
        "(2 * rank - count) * ascending",
        "functional/test_concentration.py",
    ),
    Mutant(
        "entropy: signed shares",
        "functional/concentration.py",
        "    magnitude = over_largest(x, valid).abs()\n    total = magnitude.sum(-1, keepdim=True)",
        "    magnitude = over_largest(x, valid)\n    total = magnitude.sum(-1, keepdim=True)",
        "functional/test_concentration.py",
    ),
    Mutant(
        "betting: each gambler starts with 1",
        "functional/betting.py",
        "torch.logsumexp(each, 0) - torch.log(each.new_tensor(float(len(STAKES))))",
        "torch.logsumexp(each, 0)",
        "functional/test_betting.py",
        "fair or looking",
    ),
    Mutant(
        "wins: a method without a map ties",
        "functional/wins.py",
        "masked_fill(lost, 0.0)",
        "masked_fill(lost, 0.5)",
        "functional/test_wins.py",
    ),
    Mutant(
        "leading group: the level is not split over looks",
        "functional/leading_group.py",
        "p <= level / looks",
        "p <= level",
        "functional/test_leading_group.py",
        "looks",
    ),
    Mutant(
        "leading group: samples permuted instead of methods",
        "functional/leading_group.py",
        "order = noise.argsort(-1)",
        "order = noise.argsort(1).clamp(max=methods - 1)",
        "functional/test_leading_group.py",
        "all_orders",
    ),
    Mutant(
        "best probability: contrasts are not shrunken",
        "functional/best_probability.py",
        "keep = prior / (prior + doubt)",
        "keep = torch.ones_like(doubt)",
        "functional/test_best_probability.py",
    ),
    Mutant(
        "swap: the size of the input is not met on the other model",
        "audit/swap.py",
        "for some in (ours, made, sizes_there)]",
        "for some in (ours, made, made)]",
        "audit/test_swap.py",
        "untrained",
    ),
    Mutant(
        "red team: two-faced shows one face",
        "testing/cheats.py",
        "return torch.where(predicted[:, None], guess, -guess)",
        "return torch.where(predicted[:, None], guess, guess)",
        "testing/test_red_team.py",
        "two_faced",
    ),
    Mutant(
        "ranks: ties take their first rank",
        "functional/ranks.py",
        "np.repeat(first % size + (length + 1) * 0.5, length)",
        "np.repeat(first % size + 1.0, length)",
        "functional/test_ranks.py",
    ),
    Mutant(
        "kendall: discordant pairs counted once",
        "functional/kendall.py",
        "tied_both - 2 * discordant",
        "tied_both - discordant",
        "functional/test_kendall.py",
    ),
    Mutant(
        "wilcoxon: tie correction twice too large",
        "functional/wilcoxon.py",
        "(2 * n + 1) - ties / 2) / 24",
        "(2 * n + 1) - ties) / 24",
        "functional/test_wilcoxon.py",
    ),
    Mutant(
        "area: rectangles for trapezoids",
        "functional/responses.py",
        "step * (y[..., 1:] + y[..., :-1]) / 2",
        "step * y[..., 1:]",
        "functional/test_curves.py",
    ),
    Mutant(
        "holm: Bonferroni instead",
        "functional/multiple.py",
        "remaining = tests - torch.arange(p.shape[-1], device=p.device)",
        "remaining = tests - 0 * torch.arange(p.shape[-1], device=p.device)",
        "functional/test_multiple.py",
    ),
    Mutant(
        "rms: sum for mean",
        "functional/distances.py",
        "rms = (scaled.square().sum(-1, keepdim=True) / count).sqrt()",
        "rms = scaled.square().sum(-1, keepdim=True).sqrt()",
        "functional/test_distances.py",
    ),
    Mutant(
        "isotonic: the other way round",
        "functional/isotonic.py",
        "sign = 1.0 if increasing else -1.0",
        "sign = -1.0 if increasing else 1.0",
        "functional/test_isotonic.py",
    ),
    Mutant(
        "flipping: least relevant first",
        "metrics/faithfulness/pixel_flipping.py",
        'explanation.descending_ranks if self.order == "morf" else explanation.ranks',
        'explanation.ranks if self.order == "morf" else explanation.descending_ranks',
        "metrics/faithfulness/test_closed_forms.py",
        "flipping",
    ),
    Mutant(
        "faithfulness correlation: rises for falls",
        "metrics/faithfulness/faithfulness_correlation.py",
        "falls = responses[:, :1] - responses[:, 1:]",
        "falls = responses[:, 1:] - responses[:, :1]",
        "metrics/faithfulness/test_closed_forms.py",
        "exact_contributions_correlate",
    ),
    Mutant(
        "completeness: signs cancel",
        "metrics/axiomatic/completeness.py",
        "Outcome((total - owed).abs()",
        "Outcome(total.abs() - owed.abs()",
        "metrics/axiomatic/test_completeness.py",
    ),
    Mutant(
        "sensitivity: mean for max",
        "metrics/robustness/max_sensitivity.py",
        "nan_where_any(worst(table), flags)",
        "nan_where_any(table.mean(-1), flags)",
        "metrics/robustness/test_sensitivity.py",
        "by_hand",
    ),
    Mutant(
        "gef: correlation with the wrong sign",
        "gef/outcome.py",
        "each = torch.where(still, 0.0, correlation(model, explanation, known))",
        "each = torch.where(still, 0.0, -correlation(model, explanation, known))",
        "gef/test_gef.py",
        "slow_one or one_direction",
    ),
    Mutant(
        "gef: still maps are perfect",
        "gef/outcome.py",
        "each = torch.where(still, 0.0, correlation",
        "each = torch.where(still, 1.0, correlation",
        "gef/test_gef.py",
        "constant_map or sobel",
    ),
    Mutant(
        "gef: the arc is only its last step",
        "gef/distortion.py",
        "steps.all().cumsum(0)[-1]",
        "steps.all()[-1]",
        "gef/test_gef.py",
        "arc",
    ),
    Mutant(
        "gef: iso-sigma correlates over levels",
        "gef/iso_evidence.py",
        "d_f, d_phi = model.mT, explanation.mT",
        "d_f, d_phi = model, explanation",
        "gef/test_iso_sigma.py",
        "slow_one or level_alone",
    ),
    Mutant(
        "gef: shuffled maps are compared with shuffled models",
        "gef/iso_evidence.py",
        "here.gather(2, own) if both else here",
        "here.gather(2, own)",
        "gef/test_iso_sigma.py",
        "exactly or nothing_is_followed",
    ),
    Mutant(
        "gef: the draws for a resolution grow too slowly",
        "gef/iso_evidence.py",
        "(self.error / wanted) ** 2",
        "(self.error / wanted)",
        "gef/test_iso_sigma.py",
        "four_times",
    ),
    Mutant(
        "gef: the evidence of one shard stands for all",
        "gef/joining.py",
        'out["iso_sigma"] = evidence(',
        'out["iso_sigma"] = parts[0].provenance["iso_sigma"] or evidence(',
        "gef/test_joining.py",
        "evidence_of_shards",
    ),
    Mutant(
        "gef: layers in plain lists are overlooked",
        "gef/noise_reach.py",
        "elif isinstance(each, nn.Module):",
        "elif isinstance(each, nn.ModuleList):",
        "gef/test_certainty.py",
        "does_not_see",
    ),
    Mutant(
        "gef: the path runs on where answers overflow",
        "gef/agreement.py",
        "return torch.where(outputs.isfinite().all(), kept, torch.nan)",
        "return kept",
        "gef/test_path_cases.py",
        "not_finite",
    ),
    Mutant(
        "gef: draws that overflow are kept",
        "gef/outcome.py",
        "explanation = torch.where(model.isfinite().all(-1, keepdim=True), explanation, torch.nan)",
        "explanation = explanation.clone()",
        "gef/test_certainty.py",
        "leaves_out",
    ),
    Mutant(
        "qge: less the map instead of its inverse",
        "qge/gap.py",
        "            quality - other,\n",
        "            other - quality,\n",
        "qge/test_gap.py",
        "lerf_less_morf or direction",
    ),
    Mutant(
        "qge: the inverse's values follow one of the rankings that agree with a map",
        "qge/gap.py",
        '(metric.ranks_only or metric.ties == "stable")',
        "metric.ties",
        "qge/test_tied_values.py",
    ),
    Mutant(
        "qge: direction forgotten",
        "qge/relative.py",
        "return values if self.metric.better is Direction.HIGHER else -values",
        "return values",
        "qge/test_gap.py",
        "direction or lerf_less_morf",
    ),
    Mutant(
        "inverse: values stay where they are",
        "values/explanation.py",
        "scatter_(-1, order, self.values.gather(-1, self.order))",
        "scatter_(-1, self.order, self.values.gather(-1, self.order))",
        "qge/test_inverse.py",
    ),
    Mutant(
        "f-fidelity: counts rounded up",
        "fidelity/removal.py",
        "counts = (sizes.double() * alpha + SLACK).floor()",
        "counts = (sizes.double() * alpha - SLACK).ceil()",
        "fidelity/test_removal.py",
        "exact_arithmetic",
    ),
    Mutant(
        "f-fidelity: the rest is as large as the explanation",
        "fidelity/removal.py",
        "counts = ((n[:, None] - sizes).double() * alpha - SLACK).ceil()",
        "counts = (sizes.double() * alpha - SLACK).ceil()",
        "fidelity/test_removal.py",
        "exact_arithmetic",
    ),
    Mutant(
        "f-fidelity: no cap",
        "fidelity/removal.py",
        "return counts if cap is None else torch.minimum(counts, cap[:, None])",
        "return counts",
        "fidelity/test_removal.py",
        "exact_arithmetic",
    ),
    Mutant(
        "f-fidelity: a share of few features removes none",
        "fidelity/removal.py",
        "return torch.minimum(whole.clamp(min=1), n) if beta > 0 else whole",
        "return whole",
        "fidelity/test_removal.py",
        "at_least_one_feature",
    ),
    Mutant(
        "f-fidelity: few features meet sizes again and again",
        "fidelity/removal.py",
        "return ~again | (n > FEW)[:, None]",
        "return again | ~again",
        "fidelity/test_removal.py",
        "short_samples",
    ),
    Mutant(
        "f-fidelity: the state before training is no candidate",
        "fidelity/training.py",
        "best_loss=first if math.isfinite(first) else math.inf",
        "best_loss=math.inf",
        "fidelity/test_judge.py",
        "ruin_the_model",
    ),
    Mutant(
        "f-fidelity: a judge that answers otherwise passes",
        "fidelity/certificate.py",
        "if not self.agreement >= REFUSED:",
        "if self.agreement < 0:",
        "fidelity/test_judge.py",
        "another_model",
    ),
    Mutant(
        "f-fidelity: frozen layers are not in the address",
        "fidelity/finetuning.py",
        "[name for name, parameter in model.named_parameters() if parameter.requires_grad]",
        "[name for name, parameter in model.named_parameters()]",
        "fidelity/test_judge.py",
        "frozen_layers",
    ),
    Mutant(
        "surf: the bias is lost",
        "surf/concepts.py",
        "return LinearSurrogate(weight, head.bias + self.offset - taken)",
        "return LinearSurrogate(weight, self.offset - taken)",
        "surf/test_measure.py",
        "slow_rewrite or perfect",
    ),
    Mutant(
        "surf: the optimum is not centred",
        "surf/upper_bound.py",
        "away = h[piece].double() - centre",
        "away = h[piece].double()",
        "surf/test_upper_bound.py",
        "optimum",
    ),
    Mutant(
        "surf: importances replaced at positions",
        "surf/positions.py",
        "own, given * shares)",
        "own, own)",
        "surf/test_positions.py",
        "importances_count",
    ),
    Mutant(
        "surf: a head is checked on its first row alone",
        "surf/splitting.py",
        "if bool(wrong.any()):",
        "if bool(wrong[:1].any()):",
        "surf/test_layers.py",
        "nearly_linear or train_row",
    ),
    Mutant(
        "surf: TopK without the decoder's norms",
        "surf/methods/saelens.py",
        'if config.get("rescale_acts_by_decoder_norm") and',
        "if False and",
        "surf/test_differential.py",
        "saelens",
    ),
    Mutant(
        "surf: a pursuit adds a bias it never took away",
        "surf/methods/saelens.py",
        "decoder_bias if centred else decoder_bias * 0",
        "decoder_bias",
        "surf/test_saelens.py",
        "those_of_saelens",
    ),
    Mutant(
        "surf: C-SHAP-Eval in the embedding's coordinates",
        "surf/cshap_training.py",
        "units = Units.plain(head) if training.plain else",
        "units = Units.plain(head) if True else",
        "surf/test_differential.py",
        "solves_a_perfect",
    ),
    Mutant(
        "surf: concepts never come back in NNLS",
        "surf/nnls.py",
        "wrong = torch.where(passive, now < 0, slope > least)",
        "wrong = passive & (now < 0)",
        "surf/test_methods.py",
        "nnls or least_squares",
    ),
    Mutant(
        "surf: gaps are not paired",
        "surf/verdict.py",
        'found = drawn(larger, "larger") - drawn(smaller, "smaller")',
        'found = drawn(larger, "larger") - drawn(smaller, "smaller").flip(0)',
        "surf/test_comparison.py",
        "paired",
    ),
    Mutant(
        "surf: importances ignored",
        "surf/measures.py",
        "values = compare(concepts.surrogate_of(head), embeddings, head, width)\n",
        "values = compare(_rebuilt(concepts, head).surrogate_of(head), embeddings, head, width)\n",
        "surf/test_measure.py",
        "strictly_worse or slow_rewrite",
    ),
    Mutant(
        "meta: worse is better",
        "meta/consistency.py",
        "lower = Direction(direction) is Direction.HIGHER",
        "lower = Direction(direction) is Direction.LOWER",
        "meta/test_consistency.py",
        "inter_consistency_matches",
    ),
    Mutant(
        "meta: reactivity not reversed",
        "meta/consistency.py",
        "(1 - p_far).nanmean(each)",
        "p_far.nanmean(each)",
        "meta/test_consistency.py",
        "identical",
    ),
    Mutant(
        "meta: a metric that prefers damage is heard",
        "meta/voices.py",
        "fall = utility[first] - utility[second]",
        "fall = utility[second] - utility[first]",
        "meta/test_planted_damage.py",
        "slow_one or scipy",
    ),
    Mutant(
        "meta: a pinch of the map passes for reading it",
        "meta/dependence.py",
        "if self.reach <= SHORT:",
        "if self.reach < 0:",
        "meta/test_dependence.py",
        "cheats_are_flagged",
    ),
    Mutant(
        "meta: few samples are perfect",
        "meta/consistency.py",
        "few = pairs.sum(-1) < FEWEST",
        "few = pairs.sum(-1) < 0",
        "meta/test_consistency.py",
        "fewer_than_six",
    ),
    Mutant(
        "DeepLIFT: a product gives each factor the other's value here, not the mean",
        "explainers/graph/differences.py",
        "middle_a, middle_b = (a + before[0]) / 2, (b + before[1]) / 2",
        "middle_a, middle_b = a, b",
        "explainers/test_deeplift.py",
        "product",
    ),
    Mutant(
        "DeepLIFT: a softmax whose sum is held constant",
        "explainers/graph/difference_steps.py",
        "return (given - shares * given.sum(dim, keepdim=True),)",
        "return (given,)",
        "explainers/test_deeplift.py",
        "lose_no_difference",
    ),
    Mutant(
        "a rectifier by hand whose mask is of something else",
        "explainers/graph/handwritten.py",
        "found[0] is h and found[1] == above",
        "found[1] == above",
        "explainers/test_backprop.py",
        "another",
    ),
    Mutant(
        "following: what is cut off counts as carried",
        "explainers/graph/follow.py",
        'self.hold(value, self.held.get(args[0]) or Held("it is cut off by detach()"))',
        "self.carried.add([value])",
        "explainers/test_backprop.py",
        "cannot_be_followed",
    ),
    Mutant(
        "LRP: a product with an activation is not halved",
        "explainers/graph/relevance_flow.py",
        "(R / 2).sum_to_size(shape)",
        "R.sum_to_size(shape)",
        "explainers/test_lrp.py",
        "halves",
    ),
    Mutant(
        "class activation maps: the convolution, not what follows it",
        "explainers/cam_layer.py",
        "        if fits and shape[2:] == self.grid:",
        "        if name in _CONVOLUTIONS and fits:",
        "explainers/test_cam.py",
        "behind",
    ),
    Mutant(
        "prompts: attention is read one place too late",
        "explainers/prompts.py",
        'before = side["tokens"].shape[1] - 1',
        'before = side["tokens"].shape[1]',
        "explainers/test_prompts.py",
        "rollout_reads",
    ),
    Mutant(
        "prompts: the foil counts for the answer",
        "model/prompt_logits.py",
        "total = total - _added(",
        "total = total + _added(",
        "explainers/test_prompts.py",
        "relevance_of_a_unit",
    ),
    Mutant(
        "prompts: padding sees everything",
        "explainers/graph/decompose.py",
        "weights if some is None else weights * some",
        "weights",
        "explainers/test_prompts.py",
        "see_nothing",
    ),
    Mutant(
        "known heads: the previous-token head looks ahead",
        "tasks/causal_networks.py",
        "here.roll(-1, 1)",
        "here.roll(1, 1)",
        "tasks/test_known_heads.py",
        "repeats_what",
    ),
    Mutant(
        "report: a sentence is its strongest word",
        "report/prompts.py",
        "sums = [sum(",
        "sums = [max(",
        "report/test_prompts.py",
        "pieces_cover",
    ),
    Mutant(
        "attention: always the first token",
        "explainers/attention.py",
        'return "last"',
        'return "first"',
        "explainers/test_attention.py",
        "causal",
    ),
    Mutant(
        "Shapley sampling: the reverse order is a copy",
        "explainers/shapley_sampling.py",
        "torch.where(ranks <= last, last - ranks, ranks)",
        "ranks",
        "explainers/test_more_shapley.py",
        "reverse",
    ),
    Mutant(
        "Sobol: not divided by twice the variance",
        "explainers/sensitivity_indices.py",
        "/ (2 * spread)",
        "/ spread",
        "explainers/test_more_shapley.py",
        "squares",
    ),
    Mutant(
        "HSIC: outputs that are not centred",
        "explainers/sensitivity_indices.py",
        "centred = middle - middle.mean(2, keepdim=True)",
        "centred = alike",
        "explainers/test_more_shapley.py",
        "slow_loops",
    ),
    Mutant(
        "law: the sign of a residual lost in the mean",
        "explainers/laws.py",
        "residual = (total - promised).abs()",
        "residual = (total - promised).clamp(max=0)",
        "explainers/test_every.py",
        "law",
    ),
    Mutant(
        "ties: the second ranking of a run of two is the first again",
        "values/weak_orders.py",
        "swapped = (which >> before.clamp(max=8)) & 1",
        "swapped = (which >> (before + 1).clamp(max=8)) & 1",
        "metrics/test_ties.py",
        "looked_at or met_once",
    ),
    Mutant(
        "ties: an inverse reads them from its values",
        "values/weak_orders.py",
        "    return tied.gather(-1, behind) & (place > 0) & (place < _column(count))",
        "    return tied & (place > 0) & (place < _column(count))",
        "metrics/test_ties.py",
        "reversed_weak_order or turns_its_sign",
    ),
    Mutant(
        "ties: those that hold the fill value cost as others do",
        "values/weak_orders.py",
        "        tied = tied & (moves.gather(-1, run) > 0)",
        "        tied = tied & (moves.gather(-1, run) >= 0)",
        "metrics/test_ties.py",
        "cost_nothing",
    ),
    Mutant(
        "ties: the mean over rankings counts the first twice",
        "metrics/tie_orders.py",
        "        mean = over(each.sum(-1))",
        "        mean = over(each.sum(-1) + each[:, 0]) * counts / (counts + 1)",
        "metrics/test_ties.py",
        "looked_at",
    ),
    Mutant(
        "few features: an answer is that of another mask",
        "masking/subset_table.py",
        "        return place, known[place] == keys",
        "        return place, known[place] >= keys",
        "masking/test_subset_table.py",
        "bit_by_bit",
    ),
    Mutant(
        "few features: the mean over fill rows is its first row",
        "masking/subset_table.py",
        "each.unflatten(0, (-1, repeats)).mean(1)",
        "each.unflatten(0, (-1, repeats))[:, 0]",
        "masking/test_subset_table.py",
        "by_hand",
    ),
    Mutant(
        "few features: noisy copies of an input are taken for it",
        "masking/subset_table.py",
        "    for part in (task.inputs, *side):",
        "    for part in side:",
        "masking/test_subset_table.py",
        "not_taken_for_it",
    ),
    Mutant(
        "few features: another fill is answered from the same table",
        "masking/subset_table.py",
        "place_of_ours = fill, drawn, _thread()",
        "place_of_ours = type(fill), drawn, _thread()",
        "masking/test_subset_table.py",
        "other_inputs_weights_and_fills",
    ),
    Mutant(
        "few features: subsets of every size are averaged",
        "fidelity/exact_sums.py",
        "    drawn &= size == rule.part_counts[rows, :, None]",
        "    drawn &= size <= rule.part_counts[rows, :, None]",
        "masking/test_subset_table.py",
        "expectation",
    ),
    Mutant(
        "few features: short texts are drawn",
        "fidelity/masked_pass.py",
        "        drawn[rows] = False\n",
        "",
        "masking/test_subset_table.py",
        "short_texts",
    ),
    Mutant(
        "standing: the best ranking is greedy",
        "qge/subsets.py",
        "        best[:, some] += best[:, further].amax(-1)",
        "        best[:, some] += steps[:, further].amax(-1)",
        "qge/test_standing.py",
        "best_reachable",
    ),
    Mutant(
        "variance: what all samples share is taken for their difference",
        "values/variance.py",
        "(score[source] - mean[source]) * count / (count - 1)",
        "score[source]",
        "values/test_variance.py",
        "planted",
    ),
    Mutant(
        "variance: the fill is drawn with the draws",
        "metrics/repeats.py",
        'for fixed in SOURCES if fixed != "draws"',
        'for fixed in ("tie orders",)',
        "values/test_variance.py",
        "varies",
    ),
    Mutant(
        "constant maps: the last world's map is looked at, not the first",
        "explainers/first_maps.py",
        "known, order = ids.sort(stable=True)",
        "known, order = ids.sort(descending=True)",
        "metrics/test_degenerate_maps.py",
        "max_sensitivity",
    ),
    Mutant(
        "DeepLIFT SHAP: the sum over baselines, not their mean",
        "explainers/deeplift.py",
        "return total / len(rows)",
        "return total",
        "explainers/test_deeplift.py",
        "mean_over_reference_rows",
    ),
    Mutant(
        "guided Grad-CAM: their sum, not their product",
        "explainers/guided_grad_cam.py",
        "return fine * over_input",
        "return fine + over_input",
        "explainers/test_more_shapley.py",
        "guided_gradcam",
    ),
    Mutant(
        "permutation importance: the rise, not the fall",
        "explainers/permutation_importance.py",
        "(answers[:, :1] - answers[:, 1:])",
        "(answers[:, 1:] - answers[:, :1])",
        "explainers/test_more_shapley.py",
        "permutation_importance",
    ),
    Mutant(
        "TreeSHAP: always the first class",
        "explainers/tree_shap.py",
        "return values.gather(2, at)[..., 0].to(task.outputs)",
        "return values[..., 0].to(task.outputs)",
        "explainers/test_more_shapley.py",
        "several_classes",
    ),
    Mutant(
        "joint task: every part is cut from the start of a row",
        "tasks/joint.py",
        "            at += prod(shape)\n",
        "            at += 0\n",
        "tasks/test_joint.py",
        "joint_game",
    ),
    Mutant(
        "joint task: all parts are filled with the first one's value",
        "masking/part_values.py",
        "x.new_full((width,), value)",
        "x.new_full((width,), self.values[0])",
        "tasks/test_joint.py",
        "joint_game",
    ),
    Mutant(
        "several targets: always the first",
        "model/estimators.py",
        "return found[self.target]",
        "return found[0]",
        "model/test_adapters.py",
        "several_targets_one",
    ),
    Mutant(
        "a bag of embeddings: padding counts in its mean",
        "model/embeddings.py",
        "total / there.sum(1).clamp(min=1)",
        "total / there.shape[1]",
        "model/test_embeddings.py",
        "bag_of_embeddings",
    ),
    Mutant(
        "PartitionSHAP: a half is asked in one context only",
        "explainers/partition_shap.py",
        "self._wait(with_right, right, high, start, middle, weight / 2)",
        "self._wait(context, low, left, start, middle, weight / 2)",
        "explainers/test_partition_shap.py",
        "game_of_four",
    ),
    Mutant(
        "cells: every feature takes all of its cell's value",
        "explainers/cells.py",
        "return (values / sizes)[:, self.of]",
        "return values[:, self.of]",
        "explainers/test_kernel_shap.py",
        "keep_the_sum",
    ),
    Mutant(
        "a plan that holds wherever the weights lie",
        "explainers/graph/plan.py",
        "return self.finished and all(",
        "return self.finished or all(",
        "explainers/test_plan.py",
        "lies_elsewhere",
    ),
    Mutant(
        "a plan although the model reads a number on its way",
        "explainers/graph/plan.py",
        "            elif part is not None:",
        "            elif False:",
        "explainers/test_plan.py",
        "otherwise_the_next_time",
    ),
    Mutant(
        "prompts: positions are not numbered anew",
        "model/prompted.py",
        "(attended.long().cumsum(1) - 1).clamp(min=0)",
        "torch.arange(attended.shape[1], device=attended.device).expand_as(attended)",
        "tasks/test_generation.py",
        "shorter_text or answer_less",
    ),
    Mutant(
        "prompts: the foil is added",
        "model/prompted.py",
        "response = own - _total(against, foil, there)",
        "response = own + _total(against, foil, there)",
        "tasks/test_generation.py",
        "answer_less",
    ),
    Mutant(
        "prompts: an answer of several tokens is their mean",
        "model/prompted.py",
        "return torch.where(judged, each, 0.0).sum(1)",
        "return torch.where(judged, each, 0.0).mean(1)",
        "tasks/test_generation.py",
        "several_tokens",
    ),
    Mutant(
        "prompts: pooled scores are not shared out by tokens",
        "tasks/generation.py",
        "(values / counts.clamp(min=1))",
        "(values / 1)",
        "tasks/test_prompt_checks.py",
        "pool",
    ),
    Mutant(
        "prompts: a unit suffices where all of them do nothing",
        "tasks/prompt_checks.py",
        "(back >= ENOUGH * whole) & (whole > 0)",
        "back >= ENOUGH * whole",
        "tasks/test_prompt_checks.py",
        "redundant",
    ),
    Mutant(
        "switches: states of other weights are kept",
        "model/switched.py",
        "if written != self._seen:",
        "if self._seen is None:",
        "tasks/test_switching.py",
        "move_with_the_weights",
    ),
    Mutant(
        "switches: what is off is added whole",
        "model/switched.py",
        "kept + (1 - share) * off[place].to(state)",
        "kept + off[place].to(state)",
        "tasks/test_switching.py",
        "taken_apart",
    ),
    Mutant(
        "switches: the mean is one number for all channels",
        "masking/interventions.py",
        "for axis in range(state.dim()) if axis != kept]",
        "for axis in range(state.dim())]",
        "tasks/test_switching.py",
        "taken_apart",
    ),
    Mutant(
        "prompts: beginnings go on from the wrong branch",
        "model/prefix_sharing.py",
        "kept.batch_select_indices(group[first])",
        "kept.batch_select_indices(group[first].clamp(max=0))",
        "tasks/test_generation.py",
        "begin_alike",
    ),
    Mutant(
        "gates: agreement is the response",
        "gef/agreement.py",
        "kept = outputs[:, 1].double().mean()",
        "kept = outputs[:, 0].double().mean()",
        "tasks/test_generation.py",
        "tokens_of_the_answer",
    ),
)


def patched(mutant: Mutant, folder: Path) -> str:
    """Write the wrong text into the copy of the package; the text that was there."""
    path = folder / "veridical" / mutant.file
    text = path.read_text()
    if text.count(mutant.right) != 1:
        raise SystemExit(
            f"'{mutant.name}': its text stands {text.count(mutant.right)} times in {mutant.file}"
        )
    rewritten(path, text.replace(mutant.right, mutant.wrong))
    return text


def rewritten(path: Path, text: str) -> None:
    """Write a module; what was compiled of it goes, since it is found by second and size."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def tested(folder: Path, mutant: Mutant) -> int:
    """Pytest's exit status on the copy: 0 all passed, 1 a test failed, anything else is our own mistake."""
    import pytest

    words = [str(ROOT / "tests" / mutant.tests), "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    words += ["-o", f"pythonpath={folder} {ROOT}", "-m", "not slow and not extras", "--rootdir", str(ROOT)]
    words += ["-k", mutant.pick] if mutant.pick else []
    os.chdir(ROOT)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = int(pytest.main(words))
    if status > 1:
        sys.__stderr__.write(said.getvalue()[-2000:])  # type: ignore[union-attr]
    return status


def verdict(mutant: Mutant, folder: Path) -> int:
    """Run the tests on the patched copy, in a child that starts with torch already loaded."""
    before = patched(mutant, folder)
    child = os.fork()
    if child == 0:
        sys.path.insert(0, str(folder))
        os._exit(tested(folder, mutant))
    _, status = os.waitpid(child, 0)
    rewritten(folder / "veridical" / mutant.file, before)
    return os.waitstatus_to_exitcode(status)


def main(names: Sequence[str]) -> int:
    """0 if every error was noticed."""
    # loaded once, for all children
    import captum.attr  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    from hypothesis import HealthCheck, Phase, settings

    torch.set_num_threads(1)
    # one failing example is enough: nobody reads the smallest
    settings.register_profile(
        "mutants",
        max_examples=20,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    chosen = [m for m in MUTANTS if not names or m.name in names]
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(SOURCE, folder / "veridical", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder, quiet=2)
        for mutant in chosen:
            start = time.time()
            status = verdict(mutant, folder)
            if status != 1:
                survivors.append(mutant.name)
            told = "caught" if status == 1 else f"SURVIVED (pytest said {status})"
            print(f"{told} {mutant.name} [{time.time() - start:.1f} s]", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} errors were caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
