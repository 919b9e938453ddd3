"""Numbers that lines have beside names, read in a process that can be killed and gives way to the ranks
(monarch_nb.allocator.logs.metrics_worker)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from monarch_nb.allocator.logs.helper import Helper
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb

ANSWER_S = patience(60.0)
"""How long an answer may take besides the time that it was given to read."""
_LONGEST_BUDGET_S = 5.0


class MetricsReader:
    """Reads for one request after the other. Its process is started when it is needed and ends when it is idle."""

    def __init__(self) -> None:
        self._helper = Helper("monarch_nb.allocator.logs.metrics_worker", gap(120.0))

    async def read(
        self, request: pb.ReadMetricsRequest, runs: Path, files: Sequence[RankFiles], *, is_over: bool
    ) -> pb.ReadMetricsReply:
        """Return what is asked for, of the files of a run.

        Args:
            runs: the directory of the mesh's outputs. files: in the order in which they are to be read.
            is_over: nothing more is written.

        Raises:
            MonarchNbError: it takes too long, or too much memory.
        """
        budget_s = min(request.budget_s, _LONGEST_BUDGET_S)
        told = {"runs": str(runs), "files": [(each.output, each.rank) for each in files], "over": is_over}
        asked = json.dumps(told | {"budget_s": budget_s}).encode() + b"\n" + request.SerializeToString()
        try:
            answer = await self._helper.ask(asked, budget_s + ANSWER_S)
        except TimeoutError as error:
            raise MonarchNbError(f"the output of run {request.number} can not be read in {ANSWER_S:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            what = f"the numbers of run {request.number} can not be read: the process that does it ended"
            raise MonarchNbError(f"{what} ({error}); try fewer names") from error
        return pb.ReadMetricsReply.FromString(answer)

    async def close(self) -> None:
        """End."""
        await self._helper.close()
