"""What runs need of the mesh that they run on, and scripts of the reservation that holds it: little of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from monarch_nb.client.curves.plot import Plot
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.logs.metrics import Columns
from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.pools.facts.infos import ReservationInfo
from monarch_nb.client.pools.ranks import MeshRanks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.shape import Extent


class Numbered(Protocol):
    """A run, or what is told of one."""

    @property
    def number(self) -> int: ...


class HeldMesh(Protocol):
    """A mesh, as runs on it know it.

    Attributes:
        ranks: those that are meant, of all that `core` knows.
    """

    id: str

    @property
    def ranks(self) -> tuple[int, ...]: ...

    @property
    def flag(self) -> str: ...

    @property
    def extent(self) -> Extent: ...

    @property
    def reservation(self) -> Holder: ...

    @property
    def core(self) -> MeshRanks: ...

    def logs(self, *, run: Numbered | int | None = None) -> Iterator[LogRecord]: ...

    def metrics(
        self,
        names: str | Sequence[str] | None = None,
        ranks: int | Iterable[int] | None = None,
        run: Numbered | int | None = None,
    ) -> Columns: ...

    def plot(
        self,
        *names: str,
        x: str = "",
        ranks: int | Iterable[int] | None = None,
        run: Numbered | int | Sequence[Numbered | int] | None = None,
    ) -> Plot: ...


class Holder(Protocol):
    """A reservation, as its mesh and scripts know it.

    Attributes:
        spec: what its ranks were started with.
    """

    id: str
    name: str
    pool: str
    gpus: int
    spec: pb.SpawnRequest
    files: SyncedFiles

    @property
    def mesh(self) -> HeldMesh: ...

    def status(self, *, memory: bool = True) -> ReservationInfo: ...


class PrintedOfRun:
    """The part of a run that has what it printed."""

    mesh: HeldMesh
    number: int

    def logs(self) -> Iterator[LogRecord]:
        """Yield everything that the run printed, from the ranks' files, as LogRecords."""
        return self.mesh.logs(run=self)

    def metrics(self, names: str | Sequence[str] | None = None, ranks: int | Iterable[int] | None = None) -> Columns:
        """Return the numbers that the run printed beside names, as in `loss: 2.31`: columns for `pandas.DataFrame`.

        Args:
            names: only these names. ranks: only these ranks.

        Returns:
            Columns of equal length, with a row for each line that has a number: "rank", "step" and a column for each
            name. A value is None where a line has none.

        Raises:
            UsageError: no line has the name. The message has the nearest names.
        """
        return self.mesh.metrics(names, ranks, run=self)

    def plot(self, *names: str, x: str = "", ranks: int | Iterable[int] | None = None) -> Plot:
        """Return curves of the numbers that it printed beside names, as `%mesh plot` draws them. A notebook's cell
        shows them live while it goes on.

        Args:
            names: a chart for each.
            x: against the number of this name; by default the step of a line.
            ranks: only of these ranks.

        Returns:
            The curves: `print` draws them with characters, `svg()` and `save("loss.svg")` as a picture.

        Raises:
            UsageError: no name is given, or no line has one; the message has those that there are.

        Example:
            >>> run.plot("loss")  # doctest: +SKIP
        """
        return self.mesh.plot(*names, x=x, ranks=ranks, run=self)
