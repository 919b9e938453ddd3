"""A rank's trace file as torch.profiler writes it: read event by event, and made ready to be one of many.

A trace may be larger than memory, so nothing here holds all its events. What comes out is text, one event a line, in
which processes, threads and flows have numbers that no other rank uses. A line of an event that has a time begins with
it, so that whoever knows how far clocks are apart can correct it without reading the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any, NamedTuple

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

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield each event."""
        decoder, text = json.JSONDecoder(), self._head()
        place = text.index("[", text.index(_EVENTS)) + 1
        self.facts = json.loads(text[: text.index(_EVENTS)].rstrip().rstrip(",") + "}")
        while True:
            gap = _GAP.match(text, place)
            place = gap.end() if gap else place
            if text[place : place + 1] == "]":
                break
            try:
                event, place = decoder.raw_decode(text, place)
            except json.JSONDecodeError:
                more = self._file.read(_READ_BYTES)
                if not more:
                    raise
                text, place = text[place:] + more, 0
                continue
            yield event
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
    see: Callable[[dict[str, Any]], None],
) -> Written:
    """Write the events of a trace as lines.

    Args:
        file: the trace. write: takes the lines.
        rank, name: of the rank: its number, and what its processes are called.
        own_pid: the process that the trace is of.
        see: called with each event that is kept, as it was.
    """
    trace, names, count = TraceFile(file), _Names(rank, name, own_pid), 0
    for event in trace.events():
        if not isinstance(event.get("pid"), int):
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


MOST_OPERATORS = 200
"""So many operators of a rank are told."""
_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_BACKENDS = ("gloo:", "nccl:", "mpi:", "ucc:")
"""What the names of collectives begin with that a backend's own threads record."""
_NAME_CHARACTERS = 80

Interval = tuple[float, float]


class Shares(NamedTuple):
    """Which parts of a time ranks spent with what. The four add up to 1.

    Attributes:
        compute: operators (on a GPU: kernels and copies), and no collective.
        communication: collectives, while nothing was computed.
        overlap: both at once.
        idle: neither.
    """

    compute: float
    communication: float
    overlap: float
    idle: float


class Operator(NamedTuple):
    """An operator of a trace: how long it took without what it called, and how often it was called."""

    name: str
    self_us: float
    calls: int


class Usage(NamedTuple):
    """Where the time of one rank's trace goes, which is `duration_us`."""

    shares: Shares
    operators: tuple[Operator, ...]
    duration_us: float
    on_device: bool


class _Span(NamedTuple):
    begin: float
    end: float
    name: str
    is_communication: bool


class Collected:
    """Takes the events of a trace one after the other, and says then where the time went.

    Example:
        >>> trace = Collected()
        >>> trace.add({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 6})
        >>> trace.add({"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1, "ts": 8, "dur": 2})
        >>> trace.usage().shares
        Shares(compute=0.6, communication=0.2, overlap=0.0, idle=0.2)
    """

    def __init__(self) -> None:
        self._threads: dict[tuple[Any, Any], list[_Span]] = {}
        self._kernels: list[tuple[_Span, int]] = []
        self._launched_by: dict[int, str] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event in; most kinds tell nothing."""
        if event.get("ph") != "X":
            return
        name, kind = event["name"], event.get("cat")
        begin = float(event["ts"])
        end = begin + float(event.get("dur", 0))
        number = event.get("args", {}).get("External id")
        if kind in _ON_DEVICE:
            span = _Span(begin, end, name, kind == "kernel" and "nccl" in name.lower())
            self._kernels.append((span, -1 if number is None else number))
        elif kind == "cpu_op" or (kind == "user_annotation" and name.startswith(_BACKENDS)):
            communicates = name.startswith(("c10d::", *_BACKENDS))
            span = _Span(begin, end, name, communicates)
            self._threads.setdefault((event["pid"], event["tid"]), []).append(span)
            if kind == "cpu_op" and number is not None:
                self._launched_by[number] = name

    def usage(self, windows: Sequence[Interval] = ()) -> Usage:
        """Return where the time went.

        Args:
            windows: the times that are meant, in order, in microseconds of the trace; by default, from the first event
                to the last.
        """
        windows = joined(windows or [self._extent()])
        if self._kernels:
            spans = [span for span, _ in self._kernels]
            compute = joined((span.begin, span.end) for span in spans if not span.is_communication)
            communication = joined((span.begin, span.end) for span in spans if span.is_communication)
            operators = self._by_launch()
        else:
            compute, communication = self._on_threads()
            operators = self._by_self_time()
        beside = without([(float("-inf"), float("inf"))], windows)
        compute, communication = without(compute, beside), without(communication, beside)
        most = sorted(operators, key=lambda each: -each.self_us)[:MOST_OPERATORS]
        shares = _shares(compute, communication, length(windows))
        return Usage(shares, tuple(most), length(windows), bool(self._kernels))

    def _extent(self) -> Interval:
        spans = [span for spans in self._threads.values() for span in spans] + [span for span, _ in self._kernels]
        if not spans:
            return 0.0, 0.0
        return min(span.begin for span in spans), max(span.end for span in spans)

    def _on_threads(self) -> tuple[list[Interval], list[Interval]]:
        """Return when operators computed, and when there was a collective. One that an operator calls on its own
        thread, as a hook of DDP does in the backward, is no computing."""
        compute: list[Interval] = []
        communication: list[Interval] = []
        for spans in self._threads.values():
            here = joined((span.begin, span.end) for span in spans if span.is_communication)
            compute += without(joined((span.begin, span.end) for span in spans if not span.is_communication), here)
            communication += here
        return joined(compute), joined(communication)

    def _by_self_time(self) -> list[Operator]:
        found: dict[str, tuple[float, int]] = {}
        for spans in self._threads.values():
            open_spans: list[_Span] = []
            for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
                while open_spans and open_spans[-1].end <= span.begin:
                    open_spans.pop()
                if open_spans:  # a child's time is not its parent's own
                    _count(found, open_spans[-1].name, span.begin - min(span.end, open_spans[-1].end))
                _count(found, span.name, span.end - span.begin, 1)
                open_spans.append(span)
        return [Operator(name, max(0.0, self_us), calls) for name, (self_us, calls) in found.items()]

    def _by_launch(self) -> list[Operator]:
        """Return the operators that launched kernels, with the kernels' time. A kernel that none launched, and one of a
        collective, has its own name."""
        found: dict[str, tuple[float, int]] = {}
        for span, number in self._kernels:
            launcher = "" if span.is_communication else self._launched_by.get(number, "")
            _count(found, launcher or _short(span.name.partition("(")[0]), span.end - span.begin, 1)
        return [Operator(name, self_us, calls) for name, (self_us, calls) in found.items()]


def _count(found: dict[str, tuple[float, int]], name: str, self_us: float, calls: int = 0) -> None:
    before_us, before = found.get(name, (0.0, 0))
    found[name] = (before_us + self_us, before + calls)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS else f"{name[: _NAME_CHARACTERS - 1]}…"


def _shares(compute: list[Interval], communication: list[Interval], duration: float) -> Shares:
    if duration <= 0:
        return Shares(0.0, 0.0, 0.0, 1.0)
    busy, talking = length(compute), length(communication)
    both = busy + talking - length(joined([*compute, *communication]))
    parts = (busy - both, talking - both, both)
    alone, exposed, overlap = (round(part / duration, 4) for part in parts)
    return Shares(alone, exposed, overlap, round(max(0.0, 1 - sum(parts) / duration), 4))


# ---- intervals ----


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time in intervals that do not touch, in order.

    Example:
        >>> joined([(4, 5), (0, 2), (1, 3)])
        [(0, 3), (4, 5)]
    """
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > begin:
            found.append((begin, end))
    return found


def without(intervals: list[Interval], left_out: list[Interval]) -> list[Interval]:
    """Return the time of intervals that is not in others; both as `joined` returns them.

    Example:
        >>> without([(0, 10)], [(2, 3), (8, 12)])
        [(0, 2), (3, 8)]
    """
    found: list[Interval] = []
    place = 0
    for begin, end in intervals:
        while place < len(left_out) and left_out[place][1] <= begin:
            place += 1
        at = place
        while at < len(left_out) and left_out[at][0] < end:
            if left_out[at][0] > begin:
                found.append((begin, left_out[at][0]))
            begin = left_out[at][1]
            at += 1
        if begin < end:
            found.append((begin, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Return how long intervals are together that do not touch."""
    return sum(end - begin for begin, end in intervals)
