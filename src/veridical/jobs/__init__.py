"""One job store with one resume, for studies, audits, meta-evaluations and the atlas.

A job is known by the content hash of everything that decides its result. Its result is a file of that name in
a `Store`: written whole or not at all, with a checksum, so that a run that was killed, or one of another
process, goes on from what is there. `run` carries out jobs here or on any executor of `concurrent.futures`,
with workers that may die; `resume` does so for a plain list of jobs and reads those that are there already.
"""

from veridical.jobs.lease import Lease
from veridical.jobs.pools import Processes, as_executor
from veridical.jobs.ray import RayPool
from veridical.jobs.run import BlockedError, Job, WorkerLostError, resume, run
from veridical.jobs.store import Store, content_hash

__all__ = [
    "BlockedError",
    "Job",
    "Lease",
    "Processes",
    "RayPool",
    "Store",
    "WorkerLostError",
    "as_executor",
    "content_hash",
    "resume",
    "run",
]
