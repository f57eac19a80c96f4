"""What runs on a Ray worker: its workshop, kept from job to job, and where its files go."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from veridical.study.cells import Context, Job, Result
from veridical.study.folder import CELLS, EXPLANATIONS, PREPARED, Folder
from veridical.study.plan import StudyPlan, write_plan


@dataclass(frozen=True)
class Parcel:
    """What every worker of a run starts from; `token` is also the name of a file that marks the folder."""

    token: str
    context: Context
    plan: StudyPlan


class _Bench:
    """One worker process's workshop, kept from job to job."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self.refs: dict[str, Any] = {}
        self.workshop: Any = None
        self.sees_folder = False
        with suppress(Exception):  # whatever keeps it from looking, it does not see it
            self.sees_folder = Folder(parcel.context.folder).exists(parcel.token)

    def carry_out(self, job: Job, folder: Folder) -> Result:
        from veridical.study.worker_state import Workshop

        if self.workshop is None:
            context = Context.from_json({**self.parcel.context.to_json(), "folder": folder.url})
            self.workshop = Workshop(context, _Fetched(self.refs))
        self.workshop.folder = folder
        result: Result = self.workshop.carry_out(job)
        return result

    def carry_out_elsewhere(self, job: Job, files: Mapping[str, Any]) -> tuple[Result, dict[str, bytes]]:
        """In a folder of its own, with the files that were sent along; what it made goes back."""
        import ray

        with tempfile.TemporaryDirectory() as where:
            folder = Folder(where)
            write_plan(self.parcel.plan, folder)
            for name, content in zip(files, ray.get(list(files.values())), strict=True):
                folder.write(name, content)
            result = self.carry_out(job, folder)
            made = [
                f"{kind}/{name}" for kind in (CELLS, EXPLANATIONS, PREPARED) for name in folder.files(kind)
            ]
            return result, {name: folder.read(name) for name in made if name not in files}


class _Fetched(Mapping[str, Any]):
    """Tasks by label, fetched from the object store when asked for; more may be placed later."""

    def __init__(self, refs: dict[str, Any]) -> None:
        self._refs = refs

    def __getitem__(self, label: str) -> Any:
        import ray

        return ray.get(self._refs[label])

    def __contains__(self, label: object) -> bool:
        return label in self._refs

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __bool__(self) -> bool:
        return True


_benches: dict[str, _Bench] = {}


def _leave() -> None:
    """End the work of other studies in this process; one that never got a job here has nothing to end."""
    for bench in _benches.values():
        if bench.workshop is not None:
            bench.workshop.close()
    _benches.clear()


def serve(
    token: str, parcel: list[Any], job: Job, tasks: dict[str, Any], files: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """What runs on a worker: its result and the files it made, or None if it cannot see the folder."""
    import ray

    if token not in _benches:
        _leave()
        _benches[token] = _Bench(ray.get(parcel[0]))
    bench = _benches[token]
    bench.refs.update(tasks)
    if files is not None:
        result, made = bench.carry_out_elsewhere(job, files)
    elif bench.sees_folder:
        result, made = bench.carry_out(job, Folder(bench.parcel.context.folder)), {}
    else:
        return None
    return result.to_json(), made
