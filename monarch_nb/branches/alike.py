"""Lines of several ranks that differ only in numbers become one message: one rank's text, and the numbers of each.

Ranks are seldom at the same line when somebody looks. So what they have in common from the first line on goes together,
and the rest of each by itself, or with those that have the next lines in common. A rank may then stand in a message
more than once, each time with where all of the message brings it. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from monarch_nb.lines import packing
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


@dataclass(slots=True)
class _Written:
    """What some ranks wrote: lines, and between them items that are not taken apart.

    Attributes:
        output: the message that says so.
        keys: of each line and item: equal ones are put together.
        streams: of each line whether it is of stderr; of an item None.
        lines: each line as the first rank wrote it, or the item.
        columns: of each line.
    """

    output: pb.RankOutput
    ranks: tuple[int, ...]
    keys: list[Hashable] = field(default_factory=list)
    streams: list[bool | None] = field(default_factory=list)
    lines: list[str | pb.OutputItem] = field(default_factory=list)
    columns: list[packing.Columns] = field(default_factory=list)


def pack(outputs: Iterable[pb.RankOutput]) -> list[pb.RankOutput]:
    """Return what ranks wrote with lines that are alike packed. Of each rank, everything stays in its order.

    Args:
        outputs: each of other ranks.
    """
    told = list(outputs)
    if len(told) < 2:
        return told
    written = [*map(_taken_apart, told)]
    written.sort(key=lambda each: each.ranks[0])
    packed = [each for each in told if not each.items]  # it only says up to where ranks have come
    waiting = [(written, 0)]
    while waiting:
        together, at = waiting.pop()
        for group in _beginning_alike(together, at):
            end = _end_of_alike(group, at)
            packed.append(_joined(group, at, end))
            if any(len(each.keys) > end for each in group):
                waiting.append((group, end))
    return packed


def opened(output: pb.RankOutput) -> Iterator[tuple[int, list[pb.OutputItem], run_pb2.Cursor]]:
    """Yield what each rank wrote, by itself."""
    for index, (rank, cursor) in enumerate(ranks_of(output)):
        yield rank, [_opened_item(item, index) for item in output.items], cursor


def _opened_item(item: pb.OutputItem, index: int) -> pb.OutputItem:
    if not item.HasField("alike"):
        return item
    text = packing.opened(item.alike.text, item.alike.columns, index).encode()
    return pb.OutputItem(stderr=text) if item.alike.stderr else pb.OutputItem(stdout=text)


def of_some(item: pb.OutputItem, indexes: Sequence[int]) -> pb.OutputItem:
    """Return what an item says of some of its ranks."""
    if not item.HasField("alike"):
        return item
    first = packing.opened(item.alike.text, item.alike.columns, indexes[0])
    columns = [packing.chosen(packing.split(of), indexes) for of in item.alike.columns.split("\n")]
    return _alike_item(item.alike.stderr, first.split("\n")[:-1], columns)


def ranks_of(output: pb.RankOutput) -> Iterator[tuple[int, run_pb2.Cursor]]:
    """Yield the ranks that wrote this, and up to where that brings each."""
    yield output.rank, output.cursor
    yield from zip(output.also, output.also_cursors or [output.cursor] * len(output.also), strict=True)


# ---- taking apart ----


def _taken_apart(output: pb.RankOutput) -> _Written:
    written = _Written(output, (output.rank, *output.also))
    for item in output.items:
        kind = item.WhichOneof("item")
        if kind == "alike":
            columns = [*map(packing.split, item.alike.columns.split("\n"))]
            _add_lines(written, item.alike.stderr, item.alike.text, columns)
        elif kind in ("stdout", "stderr"):
            _add_text(written, kind == "stderr", item.stderr if kind == "stderr" else item.stdout)
        else:
            _add_item(written, item)
    return written


def _add_text(written: _Written, is_stderr: bool, data: bytes) -> None:
    size = data.rfind(b"\n") + 1
    try:
        text = data[:size].decode()
    except UnicodeDecodeError:
        size, text = 0, ""
    if not packing.is_packable(text):
        size, text = 0, ""
    if text:
        _add_lines(written, is_stderr, text)
    if rest := data[size:]:
        _add_item(written, pb.OutputItem(stderr=rest) if is_stderr else pb.OutputItem(stdout=rest))


def _add_lines(written: _Written, is_stderr: bool, text: str, columns: Sequence[packing.Columns] | None = None) -> None:
    lines = text.split("\n")
    lines.pop()
    keys, own = packing.keys_and_columns(lines)
    written.keys += zip(itertools.repeat(is_stderr), keys)
    written.streams += [is_stderr] * len(lines)
    written.lines += lines
    written.columns += own if columns is None else columns


def _add_item(written: _Written, item: pb.OutputItem) -> None:
    written.keys.append(item.SerializeToString(deterministic=True))
    written.streams.append(None)
    written.lines.append(item)
    written.columns.append(())


# ---- putting together ----


def _beginning_alike(written: Iterable[_Written], at: int) -> Iterable[list[_Written]]:
    groups: dict[Hashable, list[_Written]] = {}
    for each in written:
        if at < len(each.keys):
            groups.setdefault(each.keys[at], []).append(each)
    return groups.values()


def _end_of_alike(group: Sequence[_Written], at: int) -> int:
    """Return up to where all have the same keys."""
    first = group[0].keys
    end = len(first)
    for other in group[1:]:
        if other.keys != first:
            pairs = zip(first[at:end], other.keys[at:], strict=False)
            end = at + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return end


def _joined(group: Sequence[_Written], at: int, end: int) -> pb.RankOutput:
    first = group[0]
    if len(group) == 1 and at == 0:
        return first.output
    joined = pb.RankOutput(rank=first.ranks[0], cursor=first.output.cursor, also=first.ranks[1:])
    for each in group[1:]:
        joined.also.extend(each.ranks)
    if any(each.output.also_cursors or each.output.cursor != first.output.cursor for each in group):
        for each in group:
            if each is not first:
                joined.also_cursors.append(each.output.cursor)
            joined.also_cursors.extend(each.output.also_cursors or [each.output.cursor] * len(each.output.also))
    counts = [len(each.ranks) for each in group]
    for is_stderr, places in itertools.groupby(range(at, end), key=first.streams.__getitem__):
        if is_stderr is None:
            joined.items.extend(item for place in places if isinstance(item := first.lines[place], pb.OutputItem))
        else:
            lines, columns = [], []
            for place in places:
                lines.append(str(first.lines[place]))
                columns.append(packing.joined([each.columns[place] for each in group], counts))
            joined.items.append(_alike_item(is_stderr, lines, columns))
    return joined


def _alike_item(is_stderr: bool, lines: Iterable[str], columns: Iterable[packing.Columns]) -> pb.OutputItem:
    """Return lines of several ranks: as plain text if they have no different ones."""
    text, of = "".join(f"{line}\n" for line in lines), "\n".join(map(packing.text_of, columns))
    if packing.differs(of):
        return pb.OutputItem(alike=pb.AlikeLines(stderr=is_stderr, text=text, columns=of))
    return pb.OutputItem(stderr=text.encode()) if is_stderr else pb.OutputItem(stdout=text.encode())
