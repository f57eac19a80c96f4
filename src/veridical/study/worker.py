"""A worker process: jobs come in on standard input, results go out on standard output, a line each."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading

from veridical.study.cells import Context, Job
from veridical.study.worker_state import Workshop


def main() -> None:
    """Serve until the process that started this one is gone."""
    # what a user's model prints must not end up between the results
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            jobs.put(Job.from_json(json.loads(line)))
        # the pipe has closed: the runner is gone, and so is whoever would want the result
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    workshop = Workshop(Context.from_json(json.loads(sys.argv[1])))
    answers.write("ready\n")
    answers.flush()
    while True:
        result = workshop.carry_out(jobs.get())
        answers.write(json.dumps(result.to_json()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
