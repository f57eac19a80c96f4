"""New names for old cells: a label decides no score, so files are rewritten, not made again."""

from __future__ import annotations

import json

from veridical.study.folder import CELLS, Folder
from veridical.study.plan import StudyPlan
from veridical.study.tables import relabelled


def relabel(plan: StudyPlan, folder: Folder) -> int:
    """Bring labels inside the files of the folder's last plan up to date; how many files changed."""
    try:
        before = StudyPlan.from_json(json.loads(folder.read("plan.json")))
    except FileNotFoundError:
        return 0
    if before.labels == plan.labels:
        return 0
    old = {job.address: (job.task, job.explainer, job.metric) for job in before.cells()}
    there = folder.names(CELLS)
    changed = 0
    for job in plan.cells():
        new = (job.task, job.explainer, job.metric)
        if job.address in there and old.get(job.address, new) != new:
            name = f"{CELLS}/{job.address}.parquet"
            labels = dict(zip(("task", "explainer", "metric"), new, strict=True))
            folder.write(name, relabelled(folder.read(name), {**labels, "seed": job.seed}))
            changed += 1
    return changed
