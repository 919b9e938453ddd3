"""Where a rank's output goes: files, and marks that say in which order."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_nb.worker.shell.streams import CallOutputs


def open_files() -> list[str]:
    return [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]


def test_who_writes_on_to_files_that_were_closed_has_them_open_at_once(tmp_path: Path) -> None:
    """What nobody has open is archived when its run is over."""
    outputs = CallOutputs(str(tmp_path), 0)
    outputs.of(7).write_text(0, "early\n")
    for other in range(8, 13):
        outputs.of(other)
    file = str(tmp_path / "7" / "0.out")
    assert file not in open_files()
    again = outputs.of(7)
    assert file in open_files()
    again.write_text(0, "late\n")
    assert (tmp_path / "7" / "0.out").read_text() == "early\nlate\n"
