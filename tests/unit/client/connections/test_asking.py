"""What must be so on all nodes or on none."""

import asyncio
from collections.abc import Sequence

import pytest

from monarch_nb.client.connections.asking import all_or_none
from monarch_nb.errors import NodeUnreachable, ReservationNotFound


class Node:
    """A node that does as it is told; it loses the requests in `lost`, and does those in `unanswered` all the same."""

    def __init__(self, name: str, lost: Sequence[str] = (), unanswered: Sequence[str] = (), slow: str = "") -> None:
        self.name, self.lost, self.unanswered, self.slow = name, lost, unanswered, slow
        self.state = "old"
        self.asked = asyncio.Event()

    async def unary(self, method: str, request: str) -> None:
        self.asked.set()
        if request not in self.lost:
            self.state = request
        if request in (*self.lost, *self.unanswered):
            raise NodeUnreachable(f"{self.name} does not answer", self.name)
        if request == self.slow:
            await asyncio.Event().wait()


async def tell(*nodes: Node) -> None:
    await all_or_none("Share", {node: (["new"], ["old"]) for node in nodes})  # type: ignore[misc]


def test_all_change() -> None:
    nodes = [Node("n0"), Node("n1")]
    asyncio.run(tell(*nodes))
    assert [node.state for node in nodes] == ["new", "new"]


@pytest.mark.parametrize("failing", [{"lost": ["new"]}, {"unanswered": ["new"]}], ids=["lost", "unanswered"])
def test_all_take_it_back_when_one_fails(failing: dict[str, list[str]]) -> None:
    nodes = [Node("n0"), Node("n1", **failing)]
    with pytest.raises(NodeUnreachable, match=r"n1 does not answer$"):
        asyncio.run(tell(*nodes))
    assert [node.state for node in nodes] == ["old", "old"]


def test_a_node_that_has_released_it_meanwhile_has_nothing_to_take_back() -> None:
    class Released(Node):
        async def unary(self, method: str, request: str) -> None:
            raise ReservationNotFound("dev was released at 14:02")

    nodes = [Node("n0"), Released("n1")]
    with pytest.raises(ReservationNotFound, match=r"dev was released at 14:02$"):
        asyncio.run(tell(*nodes))
    assert nodes[0].state == "old"


def test_who_does_not_confirm_that_is_named() -> None:
    nodes = [Node("n0"), Node("n1", lost=["old"], unanswered=["new"])]
    with pytest.raises(NodeUnreachable, match="n1 does not answer; it was taken back, which n1 did not confirm"):
        asyncio.run(tell(*nodes))
    assert [node.state for node in nodes] == ["old", "new"]


def test_all_take_it_back_when_ctrl_c_comes_meanwhile() -> None:
    nodes = [Node("n0"), Node("n1", slow="new")]

    async def pressed() -> None:
        telling = asyncio.create_task(tell(*nodes))
        await nodes[1].asked.wait()
        telling.cancel()
        await telling

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(pressed())
    assert [node.state for node in nodes] == ["old", "old"]
