"""What preloading would save: the outermost imports of installed packages, and no frame of ours in their errors."""

import sys
import threading
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from monarch_nb.worker.runs import import_times
from monarch_nb.worker.runs.import_times import ImportTimes


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages, all of whose imports are worth a word."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr(import_times, "_WORTH_S", 0.0)
    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return directory


def test_only_what_the_program_itself_imports_is_named(packages: Path, tmp_path: Path) -> None:
    (packages / "mnb_inner.py").touch()
    (packages / "mnb_outer.py").write_text("import mnb_inner")
    (packages / "mnb_known.py").touch()
    __import__("mnb_known")
    (packages / "mnb_known_too.py").touch()
    times = ImportTimes()
    __import__("mnb_outer")
    del sys.modules["mnb_known"]
    __import__("mnb_known")
    assert times.hint() == "mnb_outer: 0.0 s at every run: %mesh reserve --preload mnb_outer imports it once"


def test_an_import_that_fails_shows_no_frame_of_ours(packages: Path) -> None:
    (packages / "mnb_broken.py").write_text("1 / 0")
    ImportTimes()
    with pytest.raises(ZeroDivisionError) as caught:
        __import__("mnb_broken")
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files == [__file__, str(packages / "mnb_broken.py")]


def test_another_thread_may_import_meanwhile(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that saves by itself imports what that needs while a script begins."""
    is_over = threading.Event()

    def grow() -> None:
        number = 0
        while not is_over.is_set():
            sys.modules[f"mnb_{number}"] = sys
            number += 1

    before_s = sys.getswitchinterval()
    thread = threading.Thread(target=grow)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        for _ in range(20):
            ImportTimes()
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before_s)
