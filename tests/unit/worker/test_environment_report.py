"""What an environment says of itself, without importing anything heavy."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.worker import environment_report
from monarch_nb.worker.environment_report import describe


def install(directory: Path, name: str, version: str, source: Path | None = None) -> None:
    """A distribution as pip leaves it."""
    facts = directory / f"{name}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if source is not None:
        (facts / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))


def test_packages_and_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my source").mkdir()
    install(tmp_path, "published", "1.2")
    install(tmp_path, "mine", "0.1", tmp_path / "my source")
    install(tmp_path, "once_mine", "0.1", tmp_path / "removed")
    monkeypatch.syspath_prepend(tmp_path)
    environment = describe(["published", "mine", "once_mine", "nowhere"])
    assert environment.packages == {"published": "1.2", "mine": "0.1", "once_mine": "0.1", "nowhere": None}
    assert environment.sources == {"mine": str(tmp_path / "my source")}


@pytest.mark.parametrize(
    ("cuda", "expected"), [("cuda: Optional[str] = '12.8'", "12.8"), ("cuda = None", None), ("", None)]
)
def test_torch_is_read_not_imported(
    cuda: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0+x'\ndebug = False\n{cuda}\nhip = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    environment = describe()
    assert (environment.torch, environment.torch_cuda) == ("2.13.0+x", expected)


class FakeNvml:
    """As libnvidia-ml.so.1 of a machine; `broken` calls fail."""

    def __init__(self, broken: str = "") -> None:
        self.broken, self.ended = broken, False

    def nvmlInit_v2(self) -> int:
        return int(self.broken == "init")

    def nvmlShutdown(self) -> int:
        self.ended = True
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: ctypes.c_uint) -> int:
        assert len(text) == length.value
        text.value = b"570.124.06"
        return int(self.broken == "driver")

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:
        number._obj.value = 12080
        return int(self.broken == "cuda")


@pytest.mark.parametrize(
    ("broken", "driver", "cuda"),
    [("", "570.124.06", "12.8"), ("init", None, None), ("driver", None, "12.8"), ("cuda", "570.124.06", None)],
)
def test_the_driver(broken: str, driver: str | None, cuda: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(broken)
    monkeypatch.setattr(environment_report.ctypes, "CDLL", lambda name: nvml)
    environment = describe()
    assert (environment.driver, environment.cuda) == (driver, cuda)
    assert nvml.ended == (broken != "init")


def test_room(tmp_path: Path) -> None:
    environment = describe(directories=[str(tmp_path), "/nowhere"])
    assert environment.free_bytes.keys() == {str(tmp_path), "/nowhere"}
    assert (environment.free_bytes[str(tmp_path)] or 0) > 0
    assert environment.free_bytes["/nowhere"] is None


def test_it_needs_only_the_standard_library() -> None:
    program = "import sys; import monarch_nb.worker.environment_report; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert modules.returncode == 0, modules.stderr
