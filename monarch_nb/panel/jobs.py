"""Long work: each in a thread, with progress, cancel and a result."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from monarch_nb.client.connections.bridge import post
from monarch_nb.errors import MonarchNbError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.panel.refusal import clickable
from monarch_nb.panel.shown.view import Json

_log = logging.getLogger(__name__)

MAX_KEPT = 50

Say = Callable[[str], None]
Work = Callable[[Say], Any]
"""Does the work, says what it is doing, returns the result (JSON)."""


class Jobs:
    """The long work of this process. A job that was cancelled cleans up as after Ctrl-C.

    Args:
        publish: called on the background loop with an event whenever a job is not as it was.
    """

    def __init__(self, publish: Callable[[Json], None]) -> None:
        self._publish = publish
        self._jobs: dict[str, tuple[Json, Interrupt]] = {}

    def start(self, action: str, title: str, work: Work, *, done: Callable[[], None] | None = None) -> Json:
        """Begin; return the job.

        Args:
            done: called on the background loop when it has come to an end.
        """
        job: Json = {
            "id": uuid.uuid4().hex,
            "action": action,
            "title": title,
            "state": "running",
            "message": "",
            "cancellable": True,
            "result": None,
            "error": None,
        }
        interrupt = Interrupt()
        self._jobs[job["id"]] = job, interrupt
        self._drop_oldest()
        begun = dict(job)
        thread = threading.Thread(target=self._run, args=(job, interrupt, work, done), name=title, daemon=True)
        thread.start()
        return begun

    def cancel(self, job_id: str) -> bool:
        """Interrupt a job; return whether there is one of that id."""
        if job_id not in self._jobs:
            return False
        job, interrupt = self._jobs[job_id]
        if job["state"] == "running":
            self._update(job, message="cancelling", cancellable=False)
            interrupt.set()
        return True

    def running(self) -> list[Json]:
        """Return the jobs that go on."""
        return [dict(job) for job, _ in self._jobs.values() if job["state"] == "running"]

    def _run(self, job: Json, interrupt: Interrupt, work: Work, done: Callable[[], None] | None) -> None:
        def say(message: str) -> None:
            interrupt.check()
            self._update(job, message=message)

        try:
            with interruptible(interrupt):
                result = work(say)
            facts = {"state": "done", "result": result}
        except KeyboardInterrupt as error:
            facts = {"state": "cancelled", "message": ": ".join(filter(None, ["cancelled", clickable(str(error))]))}
        except MonarchNbError as error:
            facts = {"state": "failed", "error": clickable(str(error))}
        except Exception as error:  # noqa: BLE001 (told, in the job)
            _log.exception("%s failed", job["title"])
            facts = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        self._update(job, cancellable=False, **facts)
        interrupt.close()
        if done is not None:
            post(done)

    def _update(self, job: Json, **facts: Any) -> None:
        job.update(facts)
        post(self._publish, {"type": "job", "job": dict(job)})

    def _drop_oldest(self) -> None:
        ended = [job_id for job_id, (job, _) in self._jobs.items() if job["state"] != "running"]
        for job_id in ended[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[job_id]
