"""A rank's trace file as torch.profiler writes it: read event by event, cut, and made ready to be one of many.

A trace may be larger than memory, so nothing here holds all its events. What comes out is text, one event a line, in
which processes, threads and flows have numbers that no other rank uses. A line of an event that has a time begins with
it, so that whoever knows how far clocks are apart can correct it without reading the rest.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any, NamedTuple

MOST_BYTES = 2_000_000_000
"""A longer trace is cut: Perfetto and browsers open no longer one."""
PIDS_PER_RANK = 1000
"""A process of a rank has a number from here times the rank plus one."""
_FLOWS_PER_RANK = 1 << 32
_READ_BYTES = 1 << 22
_EVENTS = '"traceEvents"'
_GAP = re.compile(r"[\s,]*")
_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes one for each event


class TraceFile:
    """The events of a trace file, and what else it says.

    Attributes:
        facts: the file's other keys; those behind the events are there when all events have been read.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.facts: dict[str, Any] = {}

    def events(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each event, and how many characters it takes."""
        decoder, text = json.JSONDecoder(), self._head()
        place = text.index("[", text.index(_EVENTS)) + 1
        self.facts = json.loads(text[: text.index(_EVENTS)].rstrip().rstrip(",") + "}")
        while True:
            gap = _GAP.match(text, place)
            place = gap.end() if gap else place
            if text[place : place + 1] == "]":
                break
            try:
                event, end = decoder.raw_decode(text, place)
            except json.JSONDecodeError:
                more = self._file.read(_READ_BYTES)
                if not more:
                    raise
                text, place = text[place:] + more, 0
                continue
            yield event, end - place
            place = end
        rest = (text[place + 1 :] + self._file.read()).strip().lstrip(",")
        self.facts |= json.loads("{" + rest)

    def _head(self) -> str:
        text = ""
        while _EVENTS not in text or "[" not in text[text.index(_EVENTS) :]:
            more = self._file.read(_READ_BYTES)
            if not more:
                raise ValueError("no events in the trace")
            text += more
        return text


def last_begin(file: IO[str], most_bytes: int) -> float | None:
    """Return when the last events of a trace begin that are kept, so that it is no longer than `most_bytes`; None if
    the whole is no longer. An event that begins later is cut off."""
    begins, sizes, whole = array("d"), array("L"), 0
    for event, size in TraceFile(file).events():
        whole += size
        if "ts" in event:
            begins.append(float(event["ts"]))
            sizes.append(size)
    if whole <= most_bytes:
        return None
    kept, last = 0, 0.0
    for place in sorted(range(len(begins)), key=begins.__getitem__):
        kept += sizes[place]
        if kept > most_bytes:
            break
        last = begins[place]
    return last


class Written(NamedTuple):
    """What is told of a trace that was written: how many events, and the time that the file's are counted from."""

    events: int
    base_ns: int
    facts: Mapping[str, Any]


def write_lines(
    file: IO[str],
    write: Callable[[str], object],
    *,
    rank: int,
    name: str,
    own_pid: int,
    last_us: float | None,
    see: Callable[[dict[str, Any]], None],
) -> Written:
    """Write the events of a trace as lines.

    Args:
        file: the trace. write: takes the lines.
        rank, name: of the rank: its number, and what its processes are called.
        own_pid: the process that the trace is of.
        last_us: events that begin later are left out.
        see: called with each event that is kept, as it was.
    """
    trace, names, count = TraceFile(file), _Names(rank, name, own_pid), 0
    for event, _ in trace.events():
        if not isinstance(event.get("pid"), int) or (last_us is not None and event.get("ts", 0) > last_us):
            continue  # "Spans" and "Traces" are the profiler's own
        if event["ph"] == "M":
            names.note(event)
            continue
        see(event)
        count += 1
        write(line(names.renamed(event)))
    for event in names.told():
        write(line(event))
    return Written(count, int(trace.facts.get("baseTimeNanoseconds", 0)), trace.facts)


def line(event: Mapping[str, Any]) -> str:
    """Return an event as a line that begins with its time."""
    ordered = {"ts": event["ts"], **event} if "ts" in event else event
    return _encode(ordered) + "\n"


def step_events(boundaries_ns: Sequence[int], first: int, rank: int) -> Iterator[dict[str, Any]]:
    """Yield events that show steps, in a row of their own.

    Args:
        boundaries_ns: when each step begins, and when the last one ends, in the time of the file. Whole numbers: where
            a rounding has one step end after the next begins, Perfetto drops the next.
        first: the number of the first step.
    """
    pid = tid = (rank + 1) * PIDS_PER_RANK  # TensorBoard takes equal numbers of threads for one, whatever their process
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": "steps"}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": -1}}
    for number, (begin, end) in enumerate(pairwise(boundaries_ns), first):
        where = {"pid": pid, "tid": tid, "ts": begin / 1000, "dur": (end - begin) / 1000}
        yield {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", **where, "args": {}}


class _Names:
    """Numbers of processes and flows that no other rank uses, and what processes and threads are called."""

    def __init__(self, rank: int, name: str, own_pid: int) -> None:
        self._rank, self._name = rank, name
        self._numbers = {own_pid: (rank + 1) * PIDS_PER_RANK}  # a GPU's events have the GPU's number in place of a pid
        self._named: dict[tuple[str, int, int], dict[str, Any]] = {}

    def note(self, event: dict[str, Any]) -> None:
        """Keep what is said of a process or thread: traces name all GPUs of a node, also those that did nothing."""
        self._named[event["name"], event["pid"], event.get("tid", 0)] = event

    def renamed(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with the numbers of this rank."""
        changed = {**event, "pid": self._pid(event["pid"])}
        if isinstance(event.get("id"), int):
            changed["id"] = self._rank * _FLOWS_PER_RANK + event["id"] % _FLOWS_PER_RANK
        return changed

    def told(self) -> Iterator[dict[str, Any]]:
        """Yield what is to be said of the processes and threads of the events so far."""
        for pid, number in self._numbers.items():
            labels = self._named.get(("process_labels", pid, 0), {}).get("args", {}).get("labels", "")
            name = self._name if labels in ("", "CPU") else f"{self._name} {labels}"
            yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
        for (name, pid, _), event in self._named.items():
            if pid in self._numbers and name.startswith("thread_"):
                yield {**event, "pid": self._numbers[pid]}

    def _pid(self, pid: int) -> int:
        return self._numbers.setdefault(pid, (self._rank + 1) * PIDS_PER_RANK + len(self._numbers))
