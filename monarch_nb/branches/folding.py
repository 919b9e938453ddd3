"""What several ranks say alike becomes one message on its way up, and a flood its count. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

FLOOD_BYTES = 192 << 10
"""More text than this in one message is a flood: as much as 8 ranks may send of one (allocator/logs/output.py)."""


def fold(events: Sequence[pb.SessionEvent]) -> tuple[list[pb.SessionEvent], bool]:
    """Join the messages that say the same of a run. Of each rank, everything stays in its order.

    Returns:
        The events, and whether there was a flood.
    """
    place: dict[tuple[str, str], int] = {}
    joined: dict[tuple[str, str], list[Any]] = {}
    for index, event in enumerate(events):
        if key := _key(event):
            if key[0] in _AT_FIRST:
                place.setdefault(key, index)
            else:
                place[key] = index
            joined.setdefault(key, []).append(getattr(event, key[0]))
    folded: list[pb.SessionEvent] = []
    is_flood = False
    for index, event in enumerate(events):
        key = _key(event)
        if key is None:
            folded.append(event)
        elif place[key] == index:
            kind, of = key
            if kind == "output":
                output, is_large = _join_output(of, joined[key])
                is_flood = is_flood or is_large
                folded.append(pb.SessionEvent(output=output))
            elif kind == "finished":
                folded.append(pb.SessionEvent(finished=_join_finished(of, joined[key])))
            elif kind == "links":
                folded.append(pb.SessionEvent(links=_join_links(of, joined[key])))
            elif kind == "queued":
                folded += [pb.SessionEvent(queued=each) for each in _join_told(joined[key])]
            else:
                folded += [pb.SessionEvent(started=each) for each in _join_told(joined[key])]
    return folded, is_flood


_AT_FIRST = {"queued", "output"}
"""Joined where the first one stands: before what follows of any rank. The others where the last one stands."""
_JOINED = {"queued", "started", "output", "finished", "links"}


def _key(event: pb.SessionEvent) -> tuple[str, str] | None:
    """Return what an event is joined by: its kind, and what it is about."""
    kind = event.WhichOneof("message")
    if kind not in _JOINED:
        return None
    message = getattr(event, kind)
    return kind, message.mesh_id if kind == "links" else message.run_id


def _join_told(messages: Iterable[Any]) -> list[Any]:
    """Join what nodes say of a run: that it is queued, or has started."""
    joined: dict[bytes, Any] = {}
    for message in messages:
        said = type(message)()
        said.CopyFrom(message)
        said.ClearField("nodes")
        known = joined.setdefault(said.SerializeToString(deterministic=True), said)
        known.nodes.extend(message.nodes)
    return list(joined.values())


def _join_links(mesh_id: str, messages: Iterable[pb.Links]) -> pb.Links:
    is_up: dict[int, bool] = {}
    for links in messages:
        is_up |= dict.fromkeys(links.down, False) | dict.fromkeys(links.up, True)
    down, up = ([node for node, there in is_up.items() if there is wanted] for wanted in (False, True))
    return pb.Links(mesh_id=mesh_id, down=down, up=up)


# ---- results ----


def _join_finished(run_id: str, messages: Iterable[pb.Finished]) -> pb.Finished:
    joined: dict[bytes, pb.EqualResults] = {}
    for finished in messages:
        for result in finished.results:
            said = run_pb2.RankResult()
            said.CopyFrom(result)
            for field in ("rank", "duration_s", "end"):
                said.ClearField(field)
            equal = joined.setdefault(said.SerializeToString(), pb.EqualResults(result=said))
            equal.ranks.append(result.rank)
            equal.durations_s.append(result.duration_s)
        for each in finished.equal:
            equal = joined.setdefault(each.result.SerializeToString(), pb.EqualResults(result=each.result))
            equal.ranks.extend(each.ranks)
            equal.durations_s.extend(each.durations_s)
    return pb.Finished(run_id=run_id, equal=joined.values())


def results_of(equal: pb.EqualResults) -> Iterator[run_pb2.RankResult]:
    """Yield what each rank said."""
    for rank, duration_s in zip(equal.ranks, equal.durations_s, strict=True):
        result = run_pb2.RankResult()
        result.CopyFrom(equal.result)
        result.rank, result.duration_s = rank, duration_s
        yield result


# ---- output ----


def _join_output(run_id: str, messages: Iterable[pb.Output]) -> tuple[pb.Output, bool]:
    said: dict[int, list[pb.OutputItem]] = {}
    cursors: dict[int, run_pb2.Cursor] = {}
    for output in messages:
        for each in output.ranks:
            for rank, cursor in ranks_of(each):
                said.setdefault(rank, []).extend(each.items)
                cursors[rank] = cursor
    same: dict[bytes, pb.RankOutput] = {}
    encoded: dict[int, bytes] = {}
    for rank, parts in said.items():
        items = _joined_text(parts)
        key = b"".join(_encoded(item, encoded) for item in items)
        if (known := same.get(key)) is None:
            same[key] = pb.RankOutput(rank=rank, items=items, cursor=cursors[rank])
        else:
            _add_rank(known, rank, cursors[rank])
    is_flood = sum(map(_text_bytes, same.values())) > FLOOD_BYTES
    if is_flood:
        share_bytes = FLOOD_BYTES // len(same)
        for each in same.values():
            if _text_bytes(each) > share_bytes:
                shortened = _shortened(list(each.items), share_bytes)
                del each.items[:]
                each.items.extend(shortened)
    return pb.Output(run_id=run_id, ranks=same.values()), is_flood


def _text_bytes(output: pb.RankOutput) -> int:
    return sum(len(item.stdout) + len(item.stderr) for item in output.items)


def _encoded(item: pb.OutputItem, encoded: dict[int, bytes]) -> bytes:
    """Return an item as bytes that say where it ends; ranks that were joined below share their items."""
    if (found := encoded.get(id(item))) is None:
        data = item.SerializeToString(deterministic=True)
        found = encoded[id(item)] = len(data).to_bytes(4, "big") + data
    return found


def _joined_text(items: list[pb.OutputItem]) -> list[pb.OutputItem]:
    """Join pieces of text of the same stream: where a rank's text was cut is an accident."""
    kinds = [item.WhichOneof("item") for item in items]
    if not any(kind == after and kind in ("stdout", "stderr") for kind, after in itertools.pairwise(kinds)):
        return items
    joined: list[pb.OutputItem] = []
    for kind, same in itertools.groupby(zip(kinds, items, strict=True), key=lambda pair: pair[0]):
        pieces = [item for _, item in same]
        if kind == "stdout":
            joined.append(pb.OutputItem(stdout=b"".join(item.stdout for item in pieces)))
        elif kind == "stderr":
            joined.append(pb.OutputItem(stderr=b"".join(item.stderr for item in pieces)))
        else:
            joined += pieces
    return joined


def _add_rank(known: pb.RankOutput, rank: int, cursor: run_pb2.Cursor) -> None:
    if known.also_cursors or cursor != known.cursor:
        if not known.also_cursors:
            known.also_cursors.extend([known.cursor] * len(known.also))
        known.also_cursors.append(cursor)
    known.also.append(rank)


def ranks_of(output: pb.RankOutput) -> Iterator[tuple[int, run_pb2.Cursor]]:
    """Yield the ranks that wrote this, and up to where that brings each."""
    yield output.rank, output.cursor
    yield from zip(output.also, output.also_cursors or [output.cursor] * len(output.also), strict=True)


def _shortened(items: list[pb.OutputItem], room_bytes: int) -> list[pb.OutputItem]:
    """Return items with a count in place of the text of each stream, but for the end of what came last."""
    left: list[pb.OutputItem] = []
    counts: dict[bool, pb.Elided] = {}
    for index, item in enumerate(items):
        kind = item.WhichOneof("item")
        if kind not in ("stdout", "stderr", "elided"):
            left.append(item)
            continue
        is_stderr = item.elided.stderr if kind == "elided" else kind == "stderr"
        if is_stderr not in counts:
            left.append(pb.OutputItem(elided=pb.Elided(stderr=is_stderr)))
            counts[is_stderr] = left[-1].elided
        count, text = counts[is_stderr], item.stderr if is_stderr else item.stdout
        end = _end_of(text, room_bytes) if index == len(items) - 1 else b""
        count.lines += item.elided.lines + text.count(b"\n") - end.count(b"\n")
        count.size_bytes += item.elided.size_bytes + len(text) - len(end)
        if end:
            left.append(pb.OutputItem(stderr=end) if is_stderr else pb.OutputItem(stdout=end))
    return left


def _end_of(text: bytes, room_bytes: int) -> bytes:
    """Return the last lines of a text that is longer than there is room, as many as fit, or a part of the last."""
    end = text[max(0, len(text) - room_bytes) :]
    return end[end.find(b"\n") + 1 :] if b"\n" in end[:-1] else end
