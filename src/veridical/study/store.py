"""What lies in a study's folder, read only if it is whole, in its place, and of its job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from veridical.core import files
from veridical.errors import FormatError
from veridical.fidelity.artefact import KIND as FINETUNED_KIND
from veridical.study.cells import Job
from veridical.study.folder import CELLS, EXPLANATIONS, FAILURES, PREPARED, Folder
from veridical.study.plan import StudyPlan, read_plan
from veridical.study.tables import from_parquet, metadata
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores

FAILURE_KIND, FAILURE_FORMAT = "failure", 1
PATH_KIND, PATH_FORMAT = "noise path", 1


def place(job: Job) -> str:
    """The name of the file that a job leaves."""
    if job.kind == "score":
        return f"{CELLS}/{job.address}.parquet"
    if job.kind == "explain":
        return f"{EXPLANATIONS}/{job.address}.safetensors"
    suffix = "json" if job.facts["kind"] == PATH_KIND else "safetensors"
    return f"{PREPARED}/{job.address}.{suffix}"


def read_cell(folder: Folder, job: Job) -> Scores:
    """The scores of a cell; FormatError where the file is not what this job left."""
    name = place(job)
    return from_parquet(folder.read(name), f"{folder.url}/{name}", job.address, job.samples)


def read_map(folder: Folder, address: str, samples: int) -> Explanation:
    """The maps of an `explain` job; FormatError where the file is not what it left."""
    name = f"{EXPLANATIONS}/{address}.safetensors"
    with folder.at_hand(name) as path:
        if not path.is_file():
            raise FileNotFoundError(path)
        found = Explanation.load(path, address)
    files.check_header({"rows": len(found)}, f"{folder.url}/{name}", rows=samples)
    return found


def read_failure(folder: Folder, job: Job) -> dict[str, Any]:
    """What is on record of a cell that failed; a damaged record still says that it did."""
    name = f"{FAILURES}/{job.address}.json"
    try:
        found: dict[str, Any] = files.unpack_json(
            folder.read(name), name, FAILURE_KIND, FAILURE_FORMAT, job.address
        )
    except FormatError as error:
        found = {
            **failure_of(job, "score"),
            "error": f"it failed, and why is lost: {error}",
            "traceback": "",
        }
    return found


def failure_of(job: Job, step: str) -> dict[str, Any]:
    """Which cell failed, and in what step."""
    named = {name: getattr(job, name) for name in ("task", "explainer", "metric", "seed", "address")}
    return {**named, "shard": list(job.shard), "step": step}


def problem(folder: Folder, job: Job) -> str | None:
    """What is wrong with the file of a job; None if it is sound. FileNotFoundError where there is none."""
    name, source = place(job), f"{folder.url}/{place(job)}"
    try:
        content = folder.read(name)
        if job.kind == "score":
            metadata(content, source, job.address, job.samples)
        elif job.kind == "explain":
            _, header = files.unpack_tensors(content, "explanation", source, job.address)
            files.check_header(header, source, rows=job.samples)
        elif name.endswith(".json"):
            files.unpack_json(content, source, PATH_KIND, PATH_FORMAT, job.address)
        else:
            files.unpack_tensors(content, FINETUNED_KIND, source, job.address)
    except FormatError as error:
        return str(error)
    return None


def jobs_of(plan: StudyPlan) -> Iterator[Job]:
    """Every job of a plan, in the order of their making."""
    yield from plan.preparations()
    for group in plan.groups():
        if group.explain is not None:
            yield group.explain
        yield from group.scores


@dataclass(frozen=True)
class Verification:
    """What was found in a folder: sound files, what is wrong, what is missing, and what is foreign."""

    sound: int
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=(), repr=False)
    foreign: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; cells may still be to do."""
        return not self.problems


def verify(folder: Folder) -> Verification:
    """Read every file of a study and check its digest, address, row count and format."""
    try:
        plan = read_plan(folder)
    except FormatError as error:
        return Verification(0, (str(error),))
    problems, missing, sound, known = [], [], 1, set()
    for job in jobs_of(plan):
        name = place(job)
        known.add(name)
        try:
            found = problem(folder, job)
        except FileNotFoundError:
            if job.kind == "score":
                missing.append(str(job))
            continue
        sound += found is None
        problems += [f"{job}: {found}"] * (found is not None)
    there = [f"{kind}/{name}" for kind in (CELLS, EXPLANATIONS, PREPARED) for name in folder.files(kind)]
    foreign = [name for name in there if name not in known]
    return Verification(sound, tuple(problems), tuple(missing), tuple(foreign))
