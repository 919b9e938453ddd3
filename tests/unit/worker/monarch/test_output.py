"""What a process of Monarch's prints: whole lines, with who has printed them, in the files of the newest run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from monarch_nb.config import CALLER_FILE_BYTES, caller_file, run_file
from monarch_nb.worker.monarch.process import MOST_HELD_CHARACTERS, Files, LabelledStream, OfMessage


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "9").mkdir(parents=True)
    return tmp_path / "runs"


def text(runs: Path, number: int, kind: str = "out") -> str:
    return run_file(runs, number, 1, kind).read_text()


def test_whole_lines_with_a_label(runs: Path) -> None:
    stream = LabelledStream(0, Files(runs, 1), lambda: "[trainers 3/4] ")
    print("step", 10, file=stream)
    stream.write("a\nb\nhalf")
    assert text(runs, 9) == "[trainers 3/4] step 10\n[trainers 3/4] a\n[trainers 3/4] b\n"
    stream.write(" a line\n")
    assert text(runs, 9).endswith("[trainers 3/4] half a line\n")


def test_the_newest_run_has_it(runs: Path) -> None:
    files = Files(runs, 1)
    out, err = LabelledStream(0, files, str), LabelledStream(1, files, str)
    print("in 9", file=out)
    (runs / "10").mkdir()  # 10 > 9, although not as text
    (runs / "no-run").mkdir()
    print("in 10", file=out)
    print("wrong", file=err)
    assert (text(runs, 9), text(runs, 10), text(runs, 10, "err")) == ("in 9\n", "in 10\n", "wrong\n")


def test_threads_do_not_mix(runs: Path) -> None:
    stream = LabelledStream(0, Files(runs, 1), str)
    stream.write("begun ")
    other = threading.Thread(target=lambda: print("other", file=stream))
    other.start()
    other.join()
    stream.write("here\n")
    assert text(runs, 9) == "other\nbegun here\n"


def test_a_line_without_end_is_not_kept_for_ever(runs: Path) -> None:
    stream = LabelledStream(0, Files(runs, 1), str)
    stream.write("x" * (MOST_HELD_CHARACTERS + 1))
    assert len(text(runs, 9)) == MOST_HELD_CHARACTERS + 2


def test_what_can_not_be_written_raises_nothing(tmp_path: Path) -> None:
    assert LabelledStream(0, Files(tmp_path / "gone", 1), str).write("lost\n") == 5


def test_a_client_has_what_its_own_processes_print(runs: Path) -> None:
    mine = Files(runs, 1, "mine")
    out = LabelledStream(0, mine, str)
    print("nobody knows", file=out)
    assert text(runs, 9) == "nobody knows\n"
    note = caller_file(runs, "mine")
    note.parent.mkdir(exist_ok=True)
    for number in (10, 11):
        (runs / str(number)).mkdir()
    note.write_bytes((10).to_bytes(CALLER_FILE_BYTES, "little"))
    print("in mine", file=out)
    with OfMessage(mine, [out]):
        note.write_bytes((11).to_bytes(CALLER_FILE_BYTES, "little"))
        print("in its message", file=out)
    assert text(runs, 10) == "in mine\nin its message\n"
    note.write_bytes((12).to_bytes(CALLER_FILE_BYTES, "little"))  # its directory has gone
    print("in the newest", file=out)
    assert text(runs, 11) == "in the newest\n"


def test_a_message_prints_to_the_run_that_was_the_newest_when_it_began(runs: Path) -> None:
    files = Files(runs, 1)
    out = LabelledStream(0, files, str)
    with OfMessage(files, [out]):
        print("begun", file=out)
        (runs / "10").mkdir()  # a later cell calls another actor
        with OfMessage(files, [out]):
            print("another", file=out)
        print("half", end="", file=out)
    print("of nobody", file=out)
    assert text(runs, 9) == "begun\nhalf\n"
    assert text(runs, 10) == "another\nof nobody\n"
    with OfMessage(files, [out]):
        (runs / "11").mkdir()
        (runs / "10").rename(runs.parent / "10")
        print("in the newest", file=out)
    assert text(runs, 11) == "in the newest\n"
