"""Interrupting all that meshes do, whoever submitted it.

What waits is dropped on every node before what runs is interrupted on any: no rank becomes free before, so nothing of
what waits ever begins. Actors are interrupted in whose name ever they execute: the run of calls of a cell that waits
for nothing ends with the cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.interrupt_actors import executing, interrupt_actors
from monarch_nb.client.runs.interrupts.freeing import STOP_WAIT_S
from monarch_nb.client.runs.interrupts.interrupt_report import PRESS, InterruptReport
from monarch_nb.client.runs.run import Run
from monarch_nb.config import MAIN_MESH, MONARCH_MESH, patience
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


@dataclass(frozen=True)
class Part:
    """What is interrupted of a mesh.

    Attributes:
        runs: that go on on these ranks of the mesh or wait for them.
        mesh: its name.
        suffix: of what is called by a name; empty when no other mesh is meant.
        is_ours: whether we hold it; else only our own runs are interrupted, and no actors.
    """

    core: MeshCore
    ranks: Sequence[int]
    runs: Sequence[Run]
    mesh: str = MAIN_MESH
    suffix: str = ""
    is_ours: bool = True

    @property
    def is_monarch(self) -> bool:
        """Whether its actors are Monarch's own, which nobody can interrupt: they are named, and never killed."""
        return self.mesh == MONARCH_MESH


def interrupt_parts(parts: Iterable[Part], *, kill_stuck: bool) -> InterruptReport:
    """Drop the runs that wait, and interrupt those that have begun and all that actors execute.

    Args:
        kill_stuck: kill and restart the ranks that did not stop at the interrupt before this one.
    """
    reports: dict[str, InterruptReport] = {}
    dropped: list[str] = []
    others: list[str] = []
    goes_on: list[str] = []
    messages = 0
    for part in parts:
        known = [run for run in part.runs if not (part.is_monarch and run.is_calls)]
        runs = known if part.is_ours else [run for run in known if not run.owner]
        others += [run.name + part.suffix for run in known if run not in runs]
        begun = call(_drop_waiting(part.core, runs)) if runs else set()
        waiting = [run for run in runs if run.id not in begun]
        for run in waiting:
            run.cancel()  # for nodes that do not answer: when they are there again
        actors = None
        if part.is_monarch:
            goes_on += call(executing(part.core, part.ranks))
        elif part.is_ours:
            actors = call(interrupt_actors(part.core, part.ranks, part.suffix, kill_stuck=kill_stuck))
            messages += actors.messages
        told = [(run, run.interrupt(kill_stuck=kill_stuck and run.may_kill)) for run in runs if run.id in begun]
        for run in waiting:
            run.wait_freed(STOP_WAIT_S)
        part.core.unstopped = [run for run in runs if run.is_unstopped]
        reports |= {run.name + part.suffix: report for run, report in told}  # by now each knows its number
        reports |= call(actors.reports(run.id for run in runs)) if actors else {}
        dropped += [run.name + part.suffix for run in waiting]
    report = InterruptReport.of(reports, dropped, messages, others, goes_on)
    return replace(report, again=PRESS) if kill_stuck else report


async def _drop_waiting(core: MeshCore, runs: Sequence[Run]) -> set[str]:
    """Drop runs on every node where they have not begun; return those that have begun on some rank.

    A run that is begun on one node and waits on another counts as begun, and so does one of which no node that answers
    has a part: interrupting it says why it can not be reached.
    """
    request = pb.DropRequest(mesh_id=core.mesh_id, run_ids=[run.id for run in runs])
    replies = await answers({node: node.unary("Drop", request, patience(2.0)) for node in core.connections.values()})
    begun: set[str] = set()
    for reply in replies.values():
        if isinstance(reply, pb.DropReply):
            begun.update(reply.begun)
        elif not isinstance(reply, NodeUnreachable):
            raise reply
    there = {node for node, connection in core.connections.items() if isinstance(replies[connection], pb.DropReply)}
    return begun | {run.id for run in runs if there.isdisjoint(core.by_node(run.ranks))}
