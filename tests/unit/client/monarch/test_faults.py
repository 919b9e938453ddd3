"""What people are shown of actors of Monarch's that fail without a caller."""

from __future__ import annotations

import pytest

from monarch_nb.client.monarch import faults

TRACEBACK = """Traceback (most recent call last):
    File "/a/monarch/_src/actor/actor_mesh.py", line 1675, in _handle_queued_message_sync
      actor.handle_sync(
    File "/b/monarch_nb/worker/monarch/census.py", line 87, in watched_sync
      handle_sync(actor, context, method, *arguments)
    File "/a/monarch/_src/actor/actor_mesh.py", line 1831, in handle_sync
      self._report_exception(e, ctx, method_name, response_port)
"""
UNDELIVERABLE = """The actor <monarch._src.actor.actor_mesh.RootClientActor client> and all its descendants have failed:
  undeliverable message for judges.ok() (call):
  \tdescription: delivery of message from sender to dest failed
  \tdest: judges<joE42PWZpsk>.anon-{number}<nTHXgJMLtpp>@anon-{number}.ipc:///tmp/s/m-4809bd4a
  \terror: delivery failure: invalid reference judges<joE42PWZpsk>.anon-{number}@ipc:///tmp/s: actor failed; attrs: a=b
"""
FAILED = (
    "The actor <root>.<__main__.Judge judges{{'hosts': 1/2, 'gpus': {number}/2}}> and all its descendants have failed:"
)


class Timer:
    """threading.Timer, which waits until it is told."""

    started: list[Timer]

    def __init__(self, wait_s: float, call: object, arguments: list[str]) -> None:
        self._call, self._arguments = call, arguments

    def start(self) -> None:
        self.started.append(self)

    def ring(self) -> None:
        self._call(*self._arguments)  # type: ignore[operator]


def test_tracebacks_of_monarch_have_no_frame_of_ours() -> None:
    lines = faults.shown(TRACEBACK).splitlines()
    assert lines == [*TRACEBACK.splitlines()[:3], *TRACEBACK.splitlines()[5:]]


def test_failures_that_are_alike_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    Timer.started = []
    monkeypatch.setattr(faults.threading, "Timer", Timer)  # type: ignore[attr-defined]
    known = faults.Faults(told.append)
    for number in range(3):
        known.add(FAILED.format(number=number), "node1 died" if number == 0 else "")
        known.add(UNDELIVERABLE.format(number=number))
    for each in Timer.started:
        each.ring()
    first = f"Monarch: {FAILED.format(number=0)}\nnode1 died"
    undeliverable = "Monarch: undeliverable message for judges.ok() (call): actor failed"
    more = ["Monarch: 2 more failures of judges like this", "Monarch: 2 more failures of judges.ok like this"]
    assert told == [first, undeliverable, *more]
    known.add(FAILED.format(number=0))  # later, it is shown again
    assert told[-1] == f"Monarch: {FAILED.format(number=0)}"


DIED = """The actor <root>.<__main__.Judge judges{'hosts': 1/2, 'gpus': 0/2}> and all its descendants have failed:
  the process this actor was running on failed: Killed(sig=9)
"""


def test_the_death_of_a_process_is_told_in_words_and_not_of_monarchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(faults.threading, "Timer", Timer)  # type: ignore[attr-defined]
    known = faults.Faults(told.append)
    known.add(DIED)
    for monarchs in ("logger-88eGbrrGSd9", "log_forwarder-zDAzf5oA88t"):
        known.add(DIED.replace("<root>.<__main__.Judge judges", monarchs).replace("}>", "}"))
    (died,) = told
    assert died.startswith(
        "Monarch: the process of judges{'hosts': 1/2, 'gpus': 0/2} died: killed by signal 9 (SIGKILL): killed by an"
    )
    assert died.endswith("spawn_procs() of its hosts starts others")
    assert faults.subject(DIED) == "judges"
