"""The verbs of studies: run one, go on with one, open one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.errors import FormatError, InputError, StorageError
from veridical.study.cells import Context
from veridical.study.executors import Executor, InProcess, LocalProcesses

if TYPE_CHECKING:
    from veridical.study.events import Watcher
    from veridical.study.plan import StudyPlan
    from veridical.study.result import Study
    from veridical.study.spec import StudySpec
    from veridical.study.store import Verification

    AnyStudy = str | Path | Mapping[str, Any] | StudySpec


def run(
    study: AnyStudy,
    folder: str | Path | None = None,
    *,
    executor: str | Executor | None = None,
    workers: int = 2,
    allow_code: bool = False,
    watchers: Iterable[Watcher] = (),
    progress: bool | None = None,
) -> Study:
    """Compute every cell of a study that is not in the folder yet, and return the study.

    `study` is the path of a study file, the same as plain data, or a `StudySpec`. `folder` is a local path or
    an fsspec URL, by default named after the file. `executor` is "in-process", "processes" (the default for
    more than one worker), "ray", or an `Executor`. Cells that raise are in `.failures`; the others go on.
    Import paths in the study run code, and need `allow_code=True`.
    """
    from veridical.study.folder import Folder
    from veridical.study.planning import make_plan, nothing_applies
    from veridical.study.study_file import read_study

    chosen = as_executor(executor, workers)
    file = read_study(study)
    plan = make_plan(file, allow_code)
    if next(plan.cells(), None) is None:
        raise nothing_applies(plan)
    place = Folder(folder if folder is not None else default_folder(study))
    return _computed(plan, file.text, place, chosen, allow_code, watchers, progress)


def resume(
    folder: str | Path,
    *,
    executor: str | Executor | None = None,
    workers: int = 2,
    allow_code: bool = False,
    watchers: Iterable[Watcher] = (),
    progress: bool | None = None,
) -> Study:
    """Go on with the study of a folder: cells that are missing or have failed are computed."""
    from veridical.study.folder import Folder
    from veridical.study.planning import make_plan
    from veridical.study.study_file import parse_study

    place = Folder(folder)
    try:
        text = place.read("study.yaml").decode("utf-8", "replace")
    except FileNotFoundError:
        raise FormatError(f"{place.url} holds no study (there is no study.yaml)") from None
    plan = make_plan(parse_study(text, "study.yaml"), allow_code)
    return _computed(plan, text, place, as_executor(executor, workers), allow_code, watchers, progress)


def open(folder: str | Path) -> Study:
    """The study in a folder, finished or not."""
    from veridical.study.result import Study

    return Study(folder)


def as_executor(executor: str | Executor | None, workers: int) -> Executor:
    """Accept an executor or its name."""
    if executor is None:
        executor = "in-process" if workers == 1 else "processes"
    if not isinstance(executor, str):
        return executor
    if executor == "in-process":
        return InProcess()
    if executor == "processes":
        return LocalProcesses(workers)
    if executor == "ray":
        from importlib import import_module

        made: Executor = import_module("veridical.study.ray_executor").RayExecutor(num_cpus=workers)
        return made
    raise InputError(f"executor is 'in-process', 'processes', 'ray' or an Executor, got {executor!r}")


def default_folder(study: Any) -> str:
    """Beside the study file and named after it; plain data must say where to go."""
    if isinstance(study, str | Path):
        return str(Path(study).with_suffix("")) + "_study"
    raise InputError("a study that is not a file needs a folder to go to: run(study, folder)")


def settle(plan: StudyPlan, text: str, folder: Any) -> None:
    """Write the study and its plan into the folder, where workers find them."""
    from veridical.study.plan import write_plan
    from veridical.study.relabelling import relabel

    relabel(plan, folder)
    folder.rewrite("study.yaml", text.encode())
    write_plan(plan, folder)


def _computed(
    plan: StudyPlan,
    text: str,
    folder: Any,
    executor: Executor,
    allow_code: bool,
    watchers: Iterable[Watcher],
    progress: bool | None,
) -> Study:
    from veridical.study.bar import Bar
    from veridical.study.lease import Lease
    from veridical.study.result import Study
    from veridical.study.running import Runner
    from veridical.study.timings import Timings

    try:
        with Lease(folder, plan):
            settle(plan, text, folder)
            context = Context(
                folder.url,
                allow_code,
                plan.imports,
                plan.threads,
                plan.resources,
                plan.digest,
                plan.limits,
            )
            watching: list[Watcher] = [Timings(folder), Bar(progress), *watchers]
            Runner(plan, folder, executor, watching).run(context)
    except StorageError as error:
        study = _complete(plan, folder) if error.read_only else None
        if study is None:
            raise
        return study
    return Study(folder)


def _complete(plan: StudyPlan, folder: Any) -> Study | None:
    """The study of a folder that cannot be written to, if nothing needs to be."""
    from veridical.study.result import Study

    try:
        study = Study(folder)
    except FormatError:
        return None
    return study if study.plan.digest == plan.digest and study.status().complete else None


def verify(folder: str | Path) -> Verification:
    """Check every file of a study's folder: digest, address, row count, format. Nothing is computed."""
    from veridical.study.folder import Folder
    from veridical.study.store import verify as check

    return check(Folder(folder))
