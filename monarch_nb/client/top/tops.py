"""`Mesh.top`: where the ranks are, and who is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.client.top.asking import EVERY_S, look_at
from monarch_nb.client.top.table import TopTable
from monarch_nb.config import cadence

LOOK_S = cadence(3.0)


class _Mesh(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    @property
    def core(self) -> MeshRanks: ...

    @property
    def ranks(self) -> tuple[int, ...]: ...


class Tops:
    """A part of `Mesh`: where its ranks are."""

    def top(self: _Mesh, look_s: float = LOOK_S) -> TopTable:
        """Look where the ranks are for some seconds, 20 times a second, and say which share of their time they spent in
        torch, in Python, in the data loader and in which collectives; how many steps a second their optimizers take;
        what memory and GPUs they use; and who is waited for. Works while ranks run, whoever started that.

        Args:
            look_s: for how long. 0: not at all; then this tells what was seen if somebody watches already.

        Returns:
            The table. `table.straggler` is who is waited for, or None; `table.ranks` has each rank.

        Raises:
            NodeUnreachable: no node answers.

        Example:
            >>> mesh.top().straggler.ranks  # doctest: +SKIP
            (3,)
        """
        return call(_look(self.core, self.ranks, look_s))


def follow(core: MeshRanks, ranks: tuple[int, ...], every_s: float = EVERY_S) -> Iterator[TopTable]:
    """Yield where ranks are, again and again.

    Raises:
        NodeUnreachable: no node answers any more.
    """
    while True:
        yield call(look_at(core, ranks))
        call(asyncio.sleep(every_s))


async def _look(core: MeshRanks, ranks: tuple[int, ...], look_s: float) -> TopTable:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    table = await look_at(core, ranks)
    while not table.is_idle and (left_s := began_s + look_s - loop.time()) > 0:
        await asyncio.sleep(min(EVERY_S, left_s))
        table = await look_at(core, ranks, loop.time() - began_s)
    return table
