"""New names for old cells: a label decides no score, so files are rewritten, not made again."""

from __future__ import annotations

from veridical.errors import FormatError
from veridical.study.folder import CELLS, Folder
from veridical.study.plan import StudyPlan, read_plan
from veridical.study.store import place, problem
from veridical.study.tables import relabelled


def relabel(plan: StudyPlan, folder: Folder) -> int:
    """Bring labels inside the files of the folder's last plan up to date; how many files changed."""
    try:
        before = read_plan(folder)
    except FormatError:
        return 0
    if before.labels == plan.labels:
        return 0
    old = {job.address: (job.task, job.explainer, job.metric) for job in before.cells()}
    there = folder.names(CELLS)
    changed = 0
    for job in plan.cells():
        new = (job.task, job.explainer, job.metric)
        if job.address in there and old.get(job.address, new) != new:
            name = place(job)
            if problem(folder, job) is not None:
                continue  # a run makes it again
            labels = dict(zip(("task", "explainer", "metric"), new, strict=True))
            folder.write(name, relabelled(folder.read(name), {**labels, "seed": job.seed}))
            changed += 1
    return changed
