"""Where a rank's output goes: files, and marks that say in which order."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_nb.ground.frames import FrameSplitter
from monarch_nb.proto.run_pb2 import Display, Mark
from monarch_nb.worker.shell.streams import CallOutputs, RunOutput


def open_files() -> list[str]:
    return [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]


def test_output_files_and_marks(tmp_path: Path) -> None:
    output = RunOutput(str(tmp_path), 7, 2)
    output.switch(0)
    output.write_text(0, "out\n")
    output.switch(1)
    output.write_text(1, "err")
    output.display(Display(content_json="{}", kind=Display.KIND_SHOW))
    output.write_bytes(0, b"\xff")
    cursor = output.cursor()
    assert (cursor.stdout_bytes, cursor.stderr_bytes) == (5, 3)
    assert (tmp_path / "7" / "2.out").read_bytes() == b"out\n\xff"
    frames = FrameSplitter().feed((tmp_path / "7" / "2.marks").read_bytes())
    marks = [Mark.FromString(frame) for frame in frames]
    assert [(mark.stdout_bytes, mark.stderr_bytes) for mark in marks] == [(4, 0), (4, 3), (4, 3)]
    assert marks[1].display.kind == Display.KIND_SHOW


def test_output_files_close_with_the_last_reference(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    output = RunOutput(str(tmp_path), 1, 0)
    output.switch(0)
    output.write_text(0, "x")
    assert len(os.listdir("/proc/self/fd")) == before + 1, "stderr has not been needed"
    del output
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "1" / "0.out").read_text() == "x"


def test_output_that_can_not_be_written_is_noted_once() -> None:
    output = RunOutput("/proc/nowhere", 1, 0)
    output.write_text(0, "lost\n")
    assert "/proc/nowhere/1/0.out" in output.notice
    assert output.cursor().stdout_bytes == 0


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
