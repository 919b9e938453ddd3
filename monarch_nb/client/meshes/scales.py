"""What a mesh does on more and more of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self

from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.meshes.holder import MeshHolder
from monarch_nb.client.runs.needs import HeldMesh, Numbered
from monarch_nb.client.runs.run import OnError, Run
from monarch_nb.client.scaling.report import Plan, ScalingReport, plan
from monarch_nb.client.scaling.series import Series, Submit
from monarch_nb.config import patience
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.proto import run_pb2
from monarch_nb.provision.jobs import price_per_hour

FREED_WITHIN_S = patience(10.0)
"""Ranks that an interrupt has not freed by then hang."""


class _Mesh(HeldMesh, Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    @property
    def reservation(self) -> MeshHolder[Any]: ...

    def end_groups(self) -> int: ...

    def select(self, ranks: int | Iterable[int]) -> Self: ...

    def submit(
        self, code: str, *, on_error: OnError = "wait", want_value: bool = True, sync: bool = True, own_world: bool
    ) -> Run: ...

    def log_batches(
        self, ranks: Iterable[int], lines: int | None = None, run: Numbered | int | None = None
    ) -> Iterator[Iterable[LogRecord]]: ...

    def _alive(self) -> list[int]: ...

    def _sync(self) -> None: ...

    def _finish_quietly(self, spec: run_pb2.RunSpec, title: str) -> list[Any]: ...


class Scales:
    """A part of `Mesh`: what runs on more and more of its ranks."""

    def scale(
        self: _Mesh,
        code: str,
        sizes: Iterable[int],
        *,
        repeat: int = 1,
        per: str = "",
        rate: str = "",
        weak: bool = False,
        timeout_s: float | None = None,
        on_error: OnError = "abort",
        sync: bool = True,
        progress: Callable[[ScalingReport], None] | None = None,
    ) -> ScalingReport:
        """Run code on the first ranks of the mesh, size after size, and measure it. Ctrl-C ends the series.

        While the code runs, the ranks of a size are a world of their own: `rank`, `world_size`, torchrun's variables
        and `dist.init_process_group()` mean these ranks. Each run begins without process groups; earlier groups are
        ended. A run begins when all ranks have finished the run before. A size that fails is a row too, and the next
        size begins.

        Args:
            code: Python, as for `run`.
            sizes: numbers of ranks. The smallest runs first, and each runs once.
            repeat: how many runs of each size. Rows have the medians.
            per: the name of an amount, such as "tokens". The throughput is the amount divided by the time. The amount
                is looked for in the value of the last expression, if that is a dict; then in the output
                (`tokens: 12,345`, the last one counts); else it is the value itself, if that is a number. The amounts
                of several ranks are added up.
            rate: in place of `per`, the name of a throughput that the code reports itself, such as "tps".
            weak: without `per` and `rate`: each rank does the same work at every size. By default all ranks together
                do the same work at every size.
            timeout_s: interrupt a run that takes longer; its size has then failed.
            on_error: "abort" interrupts the other ranks half a second after a rank has failed; "wait" lets them finish.
            sync: first copy changed files to nodes that have copies of your files.
            progress: called with the report so far after each run.

        Returns:
            The report, with a row for each size, whether its runs failed or not.

        Raises:
            UsageError: the mesh does not have such a size, or the arguments make no sense. Nothing was run.
            KeyboardInterrupt: after Ctrl-C, when the ranks are free. Its text has the rows so far.

        Example:
            >>> report = mesh.scale("train(100)", [1, 2, 4], repeat=3, per="tokens")  # doctest: +SKIP
            >>> report.rows[-1].efficiency  # doctest: +SKIP
            0.93
        """
        asked = plan(sizes, len(self.ranks), repeat=repeat, per=per, rate=rate, weak=weak)
        if sync:
            self._sync()

        def submit(ranks: tuple[int, ...], repeat: int) -> Run:
            want_value = bool(asked.wanted)
            return self.select(ranks).submit(code, on_error=on_error, want_value=want_value, sync=False, own_world=True)

        def wait(run: Run) -> None:
            if not run.join(timeout_s):
                raise interrupted_after(run, timeout_s or 0)
            run.collected()
            run.raise_failures()

        with at_waits():
            series = series_of(self, asked, submit, wait, progress or _nothing)
            try:
                return series.measure()
            except KeyboardInterrupt as interrupt:
                raise KeyboardInterrupt(f"{interrupt}\n{series.report}") from None

    def end_groups(self: _Mesh) -> int:
        """Destroy the process groups of the living ranks. Return how many ranks the largest default group had."""
        alive = self._alive()
        if not alive:
            return 0
        spec = run_pb2.RunSpec(end_groups=run_pb2.EndGroups())
        sizes: list[int] = self.select(alive)._finish_quietly(spec, "end process groups")
        return max(sizes)


def series_of(
    mesh: _Mesh, asked: Plan, submit: Submit, wait: Callable[[Run], None], show: Callable[[ScalingReport], None]
) -> Series:
    """Return a series of runs on a mesh, and what its nodes cost where that is known."""
    held = mesh.reservation
    price = price_per_hour(held.pool, held.name) / held.nodes if held.is_mine and held.nodes else 0.0
    return Series(mesh, asked, submit, wait, show, price)


def interrupted_after(run: Run, timeout_s: float) -> TimeoutError:
    """Interrupt a run that takes too long, and wait until its ranks are free, or are found to hang; return what is to
    be raised."""
    report = run.interrupt()
    if not run.wait_freed(FREED_WITHIN_S):
        return TimeoutError(f"not finished after {timeout_s:g} s; {report}")
    run.collected()
    return TimeoutError(f"not finished after {timeout_s:g} s: interrupted")


def _nothing(_: ScalingReport) -> None:
    pass
