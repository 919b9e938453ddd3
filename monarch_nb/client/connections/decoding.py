"""From what allocators send to what people get: events of runs, failures and deaths of ranks. No I/O."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

from monarch_nb.client.connections import events
from monarch_nb.config import FACTS_MIME, RESTARTED
from monarch_nb.deaths import describe_death
from monarch_nb.errors import RankFailure
from monarch_nb.mismatches import Called
from monarch_nb.proto import allocator_pb2, run_pb2

_OUTCOMES: dict[int, Literal["ok", "error", "interrupted", "died", "cancelled"]] = {
    run_pb2.OUTCOME_OK: "ok",
    run_pb2.OUTCOME_ERROR: "error",
    run_pb2.OUTCOME_INTERRUPTED: "interrupted",
    run_pb2.OUTCOME_DIED: "died",
    run_pb2.OUTCOME_CANCELLED: "cancelled",
}


class OutputDecoder:
    """Turns what ranks wrote, which comes in pieces of bytes, into events.

    Args:
        on_lone_training: gets a rank that trains a model without any process group, and what is equal for models alike.
    """

    def __init__(self, on_lone_training: Callable[[int, str], None]) -> None:
        self._on_lone_training = on_lone_training
        self._begun: dict[tuple[int, events.Stream], bytes] = {}  # characters whose ends have not come

    def events_of(self, output: allocator_pb2.Output) -> Iterator[events.Event]:
        """Yield what listeners are told of what ranks wrote."""
        if output.HasField("counted"):
            yield from self._events_of_counted(output.counted)
        for told in output.ranks:
            ranks = (told.rank, *told.also)
            for item in told.items:
                match item.WhichOneof("item"):
                    case "stdout":
                        yield from self._texts(ranks, "stdout", item.stdout)
                    case "stderr":
                        yield from self._texts(ranks, "stderr", item.stderr)
                    case "alike":
                        yield from self._lines(ranks, item.alike)
                    case _:
                        for rank in ranks:
                            yield from self._events_of_item(rank, item)

    def _events_of_item(self, rank: int, item: allocator_pb2.OutputItem) -> Iterator[events.Event]:
        match item.WhichOneof("item"):
            case "elided":
                stream: events.Stream = "stderr" if item.elided.stderr else "stdout"
                yield from self._rest_of(rank, stream)
                yield events.Elided(rank, stream, item.elided.lines, item.elided.size_bytes)
            case "display" if item.display.kind == run_pb2.Display.KIND_TRAINS_ALONE:
                self._on_lone_training(rank, json.loads(item.display.content_json))
            case "display" if item.display.kind == run_pb2.Display.KIND_STOPPED:
                yield events.Stopped(rank, **json.loads(item.display.content_json))
            case "display":
                yield _display_event(rank, item.display)
            case "notice":
                yield events.Notice(f"rank {rank}: {item.notice}", key=f"rank{rank}")

    def _events_of_counted(self, counted: allocator_pb2.Counted) -> Iterator[events.Event]:
        """Yield what listeners are told of ranks of which nothing but a count has come."""
        streams: tuple[tuple[events.Stream, Iterable[int], Iterable[int]], ...] = (
            ("stdout", counted.stdout_lines, counted.stdout_bytes),
            ("stderr", counted.stderr_lines, counted.stderr_bytes),
        )
        for stream, lines, sizes_bytes in streams:
            wrote = [one for one in zip(counted.ranks, lines, sizes_bytes, strict=True) if one[2]]
            if self._begun:
                for rank, *_ in wrote:
                    yield from self._rest_of(rank, stream)
            if wrote:
                ranks, its_lines, its_bytes = zip(*wrote, strict=True)
                yield events.ElidedOfMany(ranks, stream, its_lines, its_bytes)

    def rest(self) -> Iterator[events.Text]:
        """Yield the beginnings of characters whose ends do not come."""
        for rank, stream in list(self._begun):
            yield from self._rest_of(rank, stream)

    def _texts(
        self, ranks: tuple[int, ...], stream: events.Stream, data: bytes
    ) -> Iterator[events.Text | events.TextOfMany]:
        """Yield what several ranks wrote alike: as one, unless some of them are in the middle of a character."""
        alike: dict[bytes, list[int]] = {}
        if self._begun:
            for rank in ranks:
                alike.setdefault(self._begun.pop((rank, stream), b""), []).append(rank)
        for begun, of in alike.items() if alike else ((b"", ranks),):
            whole = begun + data
            text, size = codecs.utf_8_decode(whole, "backslashreplace", False)
            if size < len(whole):
                self._begun.update(((rank, stream), whole[size:]) for rank in of)
            if len(of) > 1:
                yield events.TextOfMany(tuple(of), stream, text)
            else:
                yield events.Text(of[0], stream, text)

    def _lines(self, ranks: tuple[int, ...], alike: allocator_pb2.AlikeLines) -> Iterator[events.Event]:
        stream: events.Stream = "stderr" if alike.stderr else "stdout"
        lines = events.LinesOfMany(ranks, stream, alike.text, alike.columns)
        if not self._begun or not any((rank, stream) in self._begun for rank in ranks):
            yield lines
            return
        for part in lines.parts():
            yield from self._texts((part.rank,), stream, part.text.encode())

    def _rest_of(self, rank: int, stream: events.Stream) -> Iterator[events.Text]:
        if begun := self._begun.pop((rank, stream), b""):
            yield events.Text(rank, stream, begun.decode(errors="backslashreplace"))


def _display_event(rank: int, display: run_pb2.Display) -> events.Display:
    content = json.loads(display.content_json or "{}")
    kinds: dict[int, Literal["show", "update", "clear"]] = {
        run_pb2.Display.KIND_UPDATE: "update",
        run_pb2.Display.KIND_CLEAR: "clear",
    }
    kind = kinds.get(display.kind, "show")
    if kind == "clear":
        return events.Display(rank, kind, content)
    display_id = content.get("transient", {}).get("display_id")
    return events.Display(rank, kind, content.get("data", {}), content.get("metadata", {}), display_id)


def result_event(
    packed: run_pb2.RankResult, host: str, *, of_script: bool = False, of_node: bool = False
) -> events.Result:
    """Return what listeners are told of a rank that finished; `host` is its node's name. `of_node`: what it ran was the
    node's, as its first rank."""
    outcome = _OUTCOMES.get(packed.outcome, "error")
    content = json.loads(packed.bundle_json) if packed.bundle_json else {}
    bundle = content.get("data", {})
    return events.Result(
        rank=packed.rank,
        outcome=outcome,
        duration_s=packed.duration_s,
        facts=bundle.pop(FACTS_MIME, {}),
        bundle=bundle,
        metadata=content.get("metadata", {}),
        failure=None if outcome == "ok" else replace(_failure(packed, outcome, host, of_script), of_node=of_node),
        group_aborted=packed.group_aborted,
        may_print_later=not (packed.untouched or of_script) and outcome not in ("died", "cancelled"),
    )


def is_plain(packed: run_pb2.RankResult) -> bool:
    """Whether a result says no more than that the rank has come to the end, and may print on."""
    said = {field.name for field, _ in packed.ListFields()}
    return packed.outcome == run_pb2.OUTCOME_OK and said <= _PLAIN


_PLAIN = {"run_id", "rank", "outcome", "duration_s", "end", "untouched"}


def _failure(packed: run_pb2.RankResult, outcome: str, host: str, of_script: bool) -> RankFailure:
    if outcome == "died":
        return _death_failure(packed.rank, packed.death, host, of_script)
    if outcome == "cancelled":
        dropped = f"dropped by {packed.dropped_by}" if packed.dropped_by else "dropped"
        return RankFailure(packed.rank, host, outcome, "Cancelled", f"{dropped} before it began on this rank")
    failure = packed.failure
    told = (failure.name, failure.message, failure.traceback, failure.where)
    return RankFailure(packed.rank, host, outcome, *told, called=_called(failure))


def _called(failure: run_pb2.Failure) -> Called | None:
    if not failure.HasField("call"):
        return None
    of = f" of {failure.call.operands}" if failure.call.operands else ""
    what = f"{failure.call.collective}{of}"
    return Called(failure.call.group, failure.group_size, failure.call_number, what)


def _death_failure(rank: int, death: run_pb2.Death, host: str, of_script: bool) -> RankFailure:
    name = "RankRestarted" if death.likely_cause.startswith(RESTARTED) else "ProcessEnded" if of_script else "RankDied"
    return RankFailure(
        rank,
        host,
        "died",
        name,
        describe_death(death),
        exit_code=death.exit_code if death.HasField("exit_code") else None,
        signal=death.signal if death.HasField("signal") else None,
        stderr_tail=tuple(death.stderr_tail),
    )
