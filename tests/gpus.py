"""The GPUs of pools that tests start: a stand-in for NVML."""

from __future__ import annotations

import json
from pathlib import Path

FAKE_NVML = Path(__file__).parent / "fake_nvml"


class FakeGpus:
    """The GPUs of pools that are started in a test: a stand-in for NVML (tests/fake_nvml), steered by a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set()

    def set(self, **state: object) -> None:
        """Let pools that run see other GPUs: `lost=[3]`, `hangs=True`, … (see tests/fake_nvml/pynvml.py)."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._file)
