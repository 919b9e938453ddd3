"""What several ranks say alike becomes one message on its way up, and a flood its count. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from monarch_nb.branches.alike import of_some, opened, pack, ranks_of
from monarch_nb.branches.counting import Counts
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

FLOOD_BYTES = 192 << 10
"""More text than this in one message is a flood: as much as 8 ranks may send of one (allocator/logs/output.py)."""
FLOOD_RANKS = 8
"""Of so many ranks that flood the last lines are forwarded, of all others only how much they wrote."""
MANY_COST = 32
COUNTED_COST = 1 / 8
"""What a message of more ranks costs those above, and each that is only counted, in ranks whose last lines are
forwarded. While nodes are busy each message is of a part of the ranks, so the first is what counts."""


def fold(events: Sequence[pb.SessionEvent], whole: Collection[str] = ()) -> tuple[list[pb.SessionEvent], float]:
    """Join the messages that say the same of a run. Of each rank, everything stays in its order.

    Args:
        whole: runs of which floods are sent, too.

    Returns:
        The events, and what a flood in them costs those above, in ranks of which a part is forwarded; 0 without one.
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
    flooding = 0.0
    for index, event in enumerate(events):
        key = _key(event)
        if key is None:
            folded.append(event)
        elif place[key] == index:
            kind, of = key
            if kind == "output":
                output = _join_output(of, joined[key], is_whole=of in whole)
                flooding += _cost(output)
                folded.append(pb.SessionEvent(output=output))
            elif kind == "finished":
                folded.append(pb.SessionEvent(finished=_join_finished(of, joined[key])))
            elif kind == "links":
                folded.append(pb.SessionEvent(links=_join_links(of, joined[key])))
            elif kind == "seen":
                folded.append(pb.SessionEvent(seen=_join_seen(of, joined[key])))
            else:
                folded += [pb.SessionEvent(**{kind: each}) for each in _join_told(joined[key])]
    return folded, flooding


_AT_FIRST = {"queued", "output"}
"""Joined where the first one stands: before what follows of any rank. The others where the last one stands."""
_JOINED = {"queued", "started", "output", "finished", "links", "seen"}
_ABOUT = {"links": "mesh_id", "seen": "look_id"}
"""Which field says what an event is about; of most it is a run."""


def _key(event: pb.SessionEvent) -> tuple[str, str] | None:
    """Return what an event is joined by: its kind, and what it is about."""
    kind = event.WhichOneof("message")
    if kind not in _JOINED:
        return None
    message = getattr(event, kind)
    return kind, getattr(message, _ABOUT.get(kind, "run_id"))


def _join_told(messages: Iterable[Any]) -> list[Any]:
    """Join what nodes say of a run: that it is queued, or has started."""
    joined: dict[bytes, Any] = {}
    for message in messages:
        said = type(message)()
        said.CopyFrom(message)
        said.ClearField("nodes")
        known = joined.setdefault(said.SerializeToString(deterministic=True), said)
        known.nodes.MergeFrom(message.nodes)
    for known in joined.values():
        known.nodes.bounds[:] = ranges_of(known.nodes).bounds
    return list(joined.values())


def ranges_of(message: pb.NumberRanges) -> Ranges:
    """Return the set that a message says."""
    return Ranges.joined(_pairs(message))


def _pairs(message: pb.NumberRanges) -> Iterator[tuple[int, int]]:
    return zip(message.bounds[::2], message.bounds[1::2], strict=True)


def _join_links(mesh_id: str, messages: Iterable[pb.Links]) -> pb.Links:
    is_up: dict[int, bool] = {}
    for links in messages:
        is_up |= dict.fromkeys(links.down, False) | dict.fromkeys(links.up, True)
    down, up = ([node for node, there in is_up.items() if there is wanted] for wanted in (False, True))
    return pb.Links(mesh_id=mesh_id, down=down, up=up)


def _join_seen(look_id: str, messages: Iterable[pb.Seen]) -> pb.Seen:
    joined: dict[bytes | None, pb.SeenRanks] = {}
    for seen in messages:
        for place in seen.places:
            key = place.where.SerializeToString() if place.HasField("where") else None
            if key in joined:
                joined[key].ranks.extend(place.ranks)
            else:
                joined[key] = place
    return pb.Seen(look_id=look_id, places=joined.values())


# ---- results ----


def _join_finished(run_id: str, messages: Iterable[pb.Finished]) -> pb.Finished:
    alike: dict[bytes, list[pb.EqualResults]] = {}
    for finished in messages:
        for each in (*map(_as_equal, finished.results), *finished.equal):
            alike.setdefault(each.result.SerializeToString(), []).append(each)
    return pb.Finished(run_id=run_id, equal=map(_join_equal, alike.values()))


def _as_equal(result: run_pb2.RankResult) -> pb.EqualResults:
    ranks = pb.NumberRanges(bounds=(result.rank, result.rank + 1))
    equal = pb.EqualResults(result=result, ranks=ranks, durations_s=[result.duration_s])
    for field in ("rank", "duration_s", "end"):
        equal.result.ClearField(field)
    return equal


def _join_equal(alike: list[pb.EqualResults]) -> pb.EqualResults:
    joined = pb.EqualResults()
    for each in sorted(alike, key=lambda equal: tuple(equal.ranks.bounds[:1])):  # so that ranges follow each other
        joined.MergeFrom(each)  # not thousands of numbers one by one
    joined.result.CopyFrom(alike[0].result)
    bounds: list[int] = []
    for first, end in _pairs(joined.ranks):
        if bounds and first == bounds[-1]:
            bounds[-1] = end
        else:
            bounds += (first, end)
    joined.ranks.bounds[:] = bounds
    return joined


def ranks_finished(finished: pb.Finished) -> Ranges:
    """Return the ranks whose results these are."""
    pairs = [(result.rank, result.rank + 1) for result in finished.results]
    for equal in finished.equal:
        pairs += _pairs(equal.ranks)
    return Ranges.joined(pairs)


def ranks_of_equal(equal: pb.EqualResults) -> Iterator[int]:
    """Yield the ranks of equal results, in the order of what is listed of each."""
    return itertools.chain.from_iterable(itertools.starmap(range, _pairs(equal.ranks)))


def results_of(equal: pb.EqualResults) -> Iterator[run_pb2.RankResult]:
    """Yield what each rank said."""
    for rank, duration_s in zip(ranks_of_equal(equal), equal.durations_s, strict=True):
        result = run_pb2.RankResult()
        result.CopyFrom(equal.result)
        result.rank, result.duration_s = rank, duration_s
        yield result


# ---- output ----


def _join_output(run_id: str, messages: Sequence[pb.Output], *, is_whole: bool = False) -> pb.Output:
    if (told := _of_other_ranks_each(messages)) is not None:
        return pb.Output(run_id=run_id, ranks=told)
    said: dict[int, list[pb.OutputItem]] = {}
    cursors: dict[int, run_pb2.Cursor] = {}
    counts = Counts()
    orders: dict[int, tuple[int, ...]] = {}  # of packed lines, by the id of their item: whose they are
    for output in messages:
        for rank in counts.add(output.counted, cursors):
            if rank in said:  # it comes before
                said[rank] = counts.take(rank, said[rank])
        for each in output.ranks:
            items = list(each.items)
            ranks = (each.rank, *each.also)
            orders.update((id(item), ranks) for item in items if item.HasField("alike"))
            for rank, cursor in ranks_of(each):
                said.setdefault(rank, []).extend(items)
                cursors[rank] = cursor
    for rank, parts in said.items():
        if parts or rank not in counts:
            said[rank] = _joined_text(parts)
    wrote = [(rank, items, cursors[rank]) for rank, items in said.items() if items or rank not in counts]
    told = _packed(wrote, orders)
    if _is_flood(told) and not is_whole:
        told = _limited(joined_alike(itertools.chain.from_iterable(map(opened, _of_ranks(wrote, orders)))), counts)
    return pb.Output(run_id=run_id, ranks=told, counted=counts.message(cursors))


def _of_other_ranks_each(messages: Sequence[pb.Output]) -> list[pb.RankOutput] | None:
    """Return what messages say that are of other ranks each, for little; None if they are not, or are a flood."""
    outputs = [each for output in messages for each in output.ranks]
    ranks = {rank for each in outputs for rank in (each.rank, *each.also)}
    if len(ranks) < sum(1 + len(each.also) for each in outputs):
        return None
    if any(output.HasField("counted") for output in messages) or any(map(_floods, outputs)) or _is_flood(outputs):
        return None
    return pack(outputs)


_Wrote = tuple[int, Sequence[pb.OutputItem], run_pb2.Cursor]
"""A rank, what it wrote, and up to where that brings it."""


def _packed(wrote: Sequence[_Wrote], orders: Mapping[int, tuple[int, ...]]) -> list[pb.RankOutput]:
    """Return what ranks wrote, of which some was packed below, with all that is alike packed. A flood is not."""
    told = _of_ranks(wrote, orders)
    return told if any(map(_floods, told)) or _is_flood(told) else pack(told)


def _of_ranks(wrote: Sequence[_Wrote], orders: Mapping[int, tuple[int, ...]]) -> list[pb.RankOutput]:
    """Return what ranks wrote: as one message for all that wrote the same, or have the same packed lines."""
    plain: list[_Wrote] = []
    sharing: dict[tuple[int, ...], list[_Wrote]] = {}
    for each in wrote:
        if orders and any(id(item) in orders for item in each[1]):
            sharing.setdefault(tuple(map(id, each[1])), []).append(each)
        else:
            plain.append(each)
    return [*joined_alike(plain), *(_sharing(together, orders) for together in sharing.values())]


def _sharing(wrote: Sequence[_Wrote], orders: Mapping[int, tuple[int, ...]]) -> pb.RankOutput:
    """Return what ranks wrote that share their packed lines with each other, and maybe with more."""
    ranks = [rank for rank, _, _ in wrote]
    items = []
    for item in wrote[0][1]:
        whose = orders.get(id(item))
        if whose is not None and [*whose] != ranks:
            place = {rank: index for index, rank in enumerate(whose)}
            item = of_some(item, [place[rank] for rank in ranks])
        items.append(item)
    told = pb.RankOutput(rank=ranks[0], items=items, cursor=wrote[0][2])
    for rank, _, cursor in wrote[1:]:
        _add_rank(told, rank, cursor)
    return told


def joined_alike(wrote: Iterable[_Wrote]) -> list[pb.RankOutput]:
    """Return what ranks wrote, and up to where that brings them, as one message for all that wrote the same."""
    same: dict[bytes, pb.RankOutput] = {}
    encoded: dict[int, bytes] = {}
    kept = list(wrote)  # while `encoded` knows the items by their ids
    for rank, items, cursor in kept:
        key = b"".join(_encoded(item, encoded) for item in items)
        if (known := same.get(key)) is None:
            same[key] = pb.RankOutput(rank=rank, items=items, cursor=cursor)
        else:
            _add_rank(known, rank, cursor)
    return list(same.values())


def _limited(told: list[pb.RankOutput], counts: Counts) -> list[pb.RankOutput]:
    """Return what is forwarded of a message that may be a flood: of the first few ranks that print much, the end; the
    others are counted. Who prints little is heard."""
    if not _is_flood(told):
        return told
    share_bytes = FLOOD_BYTES // len(told)
    loud = sorted(each.rank for each in told if _floods(each) or _text_bytes(each) > share_bytes)
    heard, room_bytes = loud[:FLOOD_RANKS], max(share_bytes, FLOOD_BYTES // (2 * FLOOD_RANKS))
    counted = frozenset(loud[FLOOD_RANKS:])
    limited = []
    for each in told:
        if each.rank in counted:
            items = list(each.items)
            for rank, _ in ranks_of(each):
                left = counts.take(rank, items)
            if not left:
                continue
            _replace_items(each, left)
        elif each.rank in heard and _text_bytes(each) > room_bytes:
            _replace_items(each, _shortened(list(each.items), room_bytes))
        limited.append(each)
    return limited


def _is_flood(told: Sequence[pb.RankOutput]) -> bool:
    return sum(map(_text_bytes, told)) > FLOOD_BYTES or sum(map(_floods, told)) > FLOOD_RANKS


def _cost(output: pb.Output) -> float:
    """Return what a flood costs those above, in ranks of which a part is forwarded."""
    if output.HasField("counted"):
        return MANY_COST + COUNTED_COST * len(output.counted.ranks)
    return sum(map(_floods, output.ranks))


def _replace_items(output: pb.RankOutput, items: Iterable[pb.OutputItem]) -> None:
    kept = list(items)
    del output.items[:]
    output.items.extend(kept)


def _floods(output: pb.RankOutput) -> bool:
    """Whether a part of it is only counted."""
    return any(item.HasField("elided") for item in output.items)


def _text_bytes(output: pb.RankOutput) -> int:
    return sum(
        len(item.stdout) + len(item.stderr) + len(item.alike.text) + len(item.alike.columns) for item in output.items
    )


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
