"""The traces of ranks as one file that Perfetto and TensorBoard open.

Ranks send lines, one event each, whose processes, threads and flows have numbers that no other rank uses. A line of an
event that has a time begins with it (worker/instruments/traces.py).
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_TIME = '{"ts":'
_LEVEL = 3


def merge(path: Path, traces: Iterable[tuple[bytes, float]], facts: Mapping[str, Any]) -> None:
    """Write one trace file, in the Trace Event Format, gzipped. It appears when it is whole.

    Args:
        path: where.
        traces: of each rank its lines, gzipped, and what is added to their times, in microseconds.
        facts: what the file says besides the events.

    Raises:
        OSError: it can not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".monarch-nb-{path.name}")
    try:
        with gzip.open(partial, "wt", _LEVEL, "utf-8") as file:
            file.write(json.dumps(dict(facts), separators=(",", ":"))[:-1] + ',"traceEvents":[\n')
            before = ""
            for lines, added_us in traces:
                for line in _moved(lines, added_us):
                    file.write(before + line)
                    before = ",\n"
            file.write("\n]}\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _moved(lines: bytes, added_us: float) -> Iterator[str]:
    with gzip.open(io.BytesIO(lines), "rt", encoding="utf-8") as file:
        for each in file:
            line = each.rstrip("\n")
            if added_us and line.startswith(_TIME):
                time_us, rest = line[len(_TIME) :].split(",", 1)
                line = f"{_TIME}{float(time_us) + added_us:.3f},{rest}"
            yield line
