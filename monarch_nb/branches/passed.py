"""Runs that were passed on to nodes below: how far each rank has come, and what to send again, and to whom. No I/O."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import or_

from monarch_nb.branches.folding import ranges_of, ranks_finished
from monarch_nb.branches.layout import nodes_of, ranks_on
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


class PassedRun:
    """A run on nodes below.

    Attributes:
        run_id, mesh_id: of the run.
        ranks, nodes: those that it is on below.
        submit: None when it is only followed.
        numbered_by: the node that gives it its number, when it has none. It is one directly below.
        quiet: output is not wanted.
        is_ended: it is of calls, and nothing more is called in its name.
        cursors: up to where each rank's output has come.
        left: the ranks whose results have not come.
    """

    def __init__(
        self,
        mesh_id: str,
        run_id: str,
        ranks: Ranges,
        ranks_per_node: int,
        *,
        submit: pb.Submit | None = None,
        numbered_by: int = 0,
        from_shown: bool = False,
        cursors: Mapping[int, run_pb2.Cursor] | None = None,
    ) -> None:
        self.mesh_id, self.run_id, self.numbered_by = mesh_id, run_id, numbered_by
        self.ranks = self.left = ranks
        self.nodes, self._ranks_per_node = nodes_of(ranks, ranks_per_node), ranks_per_node
        self.cursors = dict(cursors or {})
        self.quiet = submit is not None and submit.quiet
        self.is_ended = False
        self._from_shown = from_shown
        self._outputs: dict[int, Ranges] = {}  # by RunSpec.output, the nodes that have said so
        self.submit: pb.Submit | None = None
        if submit is not None:
            self.submit = pb.Submit()
            self.submit.CopyFrom(submit)
            for node, output in submit.outputs.items():
                self._note_output(Ranges.of([node]), output)
            for field in ("cursors", "outputs"):
                self.submit.ClearField(field)

    @property
    def done(self) -> bool:
        """Whether every rank below has finished."""
        return not self.left

    @property
    def not_taken_in(self) -> Ranges:
        """The nodes of which nobody knows whether they know it."""
        return Ranges() if self.done else self.nodes - functools.reduce(or_, self._outputs.values(), Ranges())

    def leave(self, nodes: Ranges) -> None:
        """It is on these nodes no longer."""
        gone = ranks_on(nodes, self._ranks_per_node)
        self.ranks, self.left, self.nodes = self.ranks - gone, self.left - gone, self.nodes - nodes
        if self.submit is not None:
            self.submit.all_ranks[:] = self.ranks

    def restart(self) -> None:
        """All output is wanted, from its beginning."""
        self.quiet = self._from_shown = False
        self.cursors.clear()

    def request(self, nodes: Ranges) -> pb.SessionRequest | None:
        """Return what makes these nodes execute their part of the run and say how it goes from here on, however much
        they know; None when they have none, or it has no number to be sent with."""
        ranks = self.ranks_on(nodes)
        gives_number = self.submit is not None and self.submit.give_number and self.numbered_by in nodes
        if not (ranks or gives_number) or (self.is_new and nodes.first != self.numbered_by):
            return None
        is_over = not self.left & ranks or (self.is_ended and not self.not_taken_in & nodes)
        if self.submit is None or (is_over and not self.is_new):
            return self._follow(ranks)
        request = pb.SessionRequest(submit=self.submit)
        submit = request.submit
        submit.give_number, submit.quiet = gives_number, self.quiet
        for output, there in self._outputs.items():
            submit.outputs.update(dict.fromkeys(there & nodes, output))
        for rank, cursor in self.cursors_of(ranks).items():
            submit.cursors[rank].CopyFrom(cursor)
        return request

    def replay(self, nodes: Ranges) -> pb.SessionRequest | None:
        """Return what makes these nodes send output from the cursors on, although they follow the run already."""
        is_known = not self.is_new or nodes.first == self.numbered_by
        ranks = self.ranks_on(nodes)
        return self._follow(ranks) if ranks and is_known else None

    def ranks_on(self, nodes: Ranges) -> Ranges:
        """Return the ranks on some nodes that it is on."""
        return self.ranks & ranks_on(nodes, self._ranks_per_node)

    def cursors_of(self, ranks: Ranges) -> dict[int, run_pb2.Cursor]:
        """Return up to where the output of some ranks has come."""
        return {rank: cursor for rank, cursor in self.cursors.items() if rank in ranks}

    def _follow(self, ranks: Ranges) -> pb.SessionRequest:
        follow = pb.Follow(
            mesh_id=self.mesh_id,
            run_id=self.run_id,
            ranks=ranks,
            from_shown=self._from_shown,
            cursors=self.cursors_of(ranks),
        )
        return pb.SessionRequest(follow=follow)

    @property
    def is_new(self) -> bool:
        """Whether it waits for its number."""
        return self.submit is not None and not self.submit.run.number

    # ---- what comes ----

    def on_queued(self, queued: pb.Queued) -> None:
        """Nodes have taken it in: were it submitted again, its output would go on where it is."""
        if self.submit is not None and queued.HasField("earlier"):
            self.submit.earlier.CopyFrom(queued.earlier)
        self._note_output(ranges_of(queued.nodes), queued.output)

    def _note_output(self, nodes: Ranges, output: int) -> None:
        others = {known: left for known, there in self._outputs.items() if (left := there - nodes)}
        self._outputs = {**others, output: others.get(output, Ranges()) | nodes}

    def on_output(self, output: pb.Output) -> None:
        """Output is passed on."""
        self.cursors.update(zip(output.counted.ranks, output.counted.cursors, strict=True))
        for each in output.ranks:
            self.cursors[each.rank] = each.cursor
            if each.also:
                cursors = each.also_cursors or [each.cursor] * len(each.also)
                self.cursors.update(zip(each.also, cursors, strict=True))

    def on_finished(self, finished: pb.Finished) -> None:
        """Results are passed on."""
        self.left -= ranks_finished(finished)
