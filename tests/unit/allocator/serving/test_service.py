"""Requests of clients, as the node's service takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

from monarch_nb.allocator.serving.access import Access
from monarch_nb.allocator.serving.service import AllocatorService
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, spawn


class TestSession:
    async def test_a_run_is_written_down_before_the_only_one_who_could_submit_it_again_is_gone(
        self, node: NodeWithoutProcesses
    ) -> None:
        """Else it is lost with its results when the allocator is killed in the next moments."""

        def written() -> list[str]:
            return [record.submit.run.run_id for _, record in node.records.database.read("run", state_pb2.RunRecord)]

        async def requests() -> AsyncIterator[pb.SessionRequest]:
            run = run_pb2.RunSpec(run_id="a")
            submit = pb.Submit(mesh_id=MESH, run=run, ranks=[0, 1], all_ranks=[0, 1], give_number=True)
            yield pb.SessionRequest(submit=submit)
            written_while_it_is_there.extend(written())

        await spawn(node)
        nothing: Any = None
        written_while_it_is_there: list[str] = []
        access = Access("node0", "", node.state, node.records)
        context = AsyncMock(peer=lambda: "unix:", invocation_metadata=tuple)
        await AllocatorService(node, nothing, nothing, nothing, access).Session(requests(), context)
        assert (written_while_it_is_there, written()) == ([], ["a"])
