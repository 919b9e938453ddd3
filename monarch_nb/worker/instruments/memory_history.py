"""`%%mesh --memory-history`: torch's record of what was allocated on the GPU, by whom and when, around a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch_nb.worker.memory import gpus
from monarch_nb.worker.runs.instruments import is_chosen

NOTHING = "there is no GPU, and torch records nothing of main memory: %mesh memory shows what is held there"


class MemoryHistory:
    """The history of one run on this rank.

    Args:
        ranks: those that record; by default the first of the run on each node.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        self._is_chosen, self._is_on = is_chosen(ranks), False

    def begin(self) -> None:
        """Record from now on."""
        if self._is_chosen and gpus.are_there():
            gpus.record_history()
            self._is_on = True

    def end(self) -> dict[str, Any] | None:
        """Stop; return the snapshot. None on a rank that was not chosen."""
        if not self._is_chosen:
            return None
        if not self._is_on:
            return {"problem": NOTHING}
        self._is_on = False
        try:
            with tempfile.TemporaryDirectory(prefix="monarch-nb-memory-") as directory:
                path = Path(directory, f"rank{os.environ.get('RANK', '0')}.pickle")
                gpus.dump_history(str(path))
                return {"snapshot": path.read_bytes()}
        except OSError as error:
            return {"problem": f"the snapshot can not be written: {error}"}
        finally:
            gpus.stop_history()
