"""Runs that were passed on to nodes below: how far each rank has come, and what to send again, and to whom. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_nb.branches.layout import ranks_by_node
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


class PassedRun:
    """A run on nodes below.

    Attributes:
        run_id, mesh_id: of the run.
        by_node: its ranks below, by node rank.
        submit: None when it is only followed. Its `ranks` are not looked at any more.
        quiet: output is not wanted.
        cursors: up to where each rank's output has come.
        left: the ranks whose results have not come.
    """

    def __init__(
        self,
        mesh_id: str,
        run_id: str,
        ranks: Sequence[int],
        ranks_per_node: int,
        *,
        submit: pb.Submit | None = None,
        from_shown: bool = False,
        cursors: Mapping[int, run_pb2.Cursor] | None = None,
    ) -> None:
        self.mesh_id, self.run_id = mesh_id, run_id
        self.left = set(ranks)
        self.by_node = ranks_by_node(ranks, ranks_per_node)
        self.cursors = dict(cursors or {})
        self.quiet = submit is not None and submit.quiet
        self._from_shown = from_shown
        self._outputs: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self.submit: pb.Submit | None = None
        if submit is not None:
            self.submit = pb.Submit()
            self.submit.CopyFrom(submit)
            self._outputs, self._previous = dict(submit.outputs), dict(submit.previous)
            for field in ("ranks", "cursors", "previous", "outputs"):
                self.submit.ClearField(field)

    @property
    def done(self) -> bool:
        """Whether every rank below has finished."""
        return not self.left

    @property
    def is_taken_in(self) -> bool:
        """Whether every node below knows it."""
        return self.done or (not self.is_new and len(self._outputs) >= len(self.by_node))

    def restart(self) -> None:
        """All output is wanted, from its beginning."""
        self.quiet = self._from_shown = False
        self.cursors.clear()

    def numbered(self, queued: pb.Queued) -> None:
        """The first node has given it its number."""
        assert self.submit is not None
        self.submit.run.number = queued.number
        self._previous = dict(queued.previous)

    def request(self, nodes: Sequence[int]) -> pb.SessionRequest | None:
        """Return what makes these nodes execute their part of the run and say how it goes from here on, however much
        they know; None when they have none, or it has no number to be sent with."""
        known = self.by_node
        there = [node for node in nodes if node in known]
        gives_number = self.submit is not None and self.submit.give_number and 0 in nodes
        if not (there or gives_number) or (self.submit is not None and not (self.submit.run.number or gives_number)):
            return None
        ranks = [rank for node in there for rank in known[node]]
        cursors = {rank: self.cursors[rank] for rank in ranks if rank in self.cursors} if self.cursors else {}
        if self.submit is None or (self.left.isdisjoint(ranks) and not self.is_new):
            return self._follow(ranks, cursors)
        request = pb.SessionRequest(submit=self.submit)
        submit = request.submit
        submit.ranks.extend(ranks)
        submit.give_number, submit.quiet = gives_number, self.quiet
        for fields, values in ((submit.previous, self._previous), (submit.outputs, self._outputs)):
            if values:
                fields.update({node: values[node] for node in there if node in values})
        for rank, cursor in cursors.items():
            submit.cursors[rank].CopyFrom(cursor)
        return request

    def replay(self, nodes: Sequence[int]) -> pb.SessionRequest | None:
        """Return what makes these nodes send output from the cursors on, although they follow the run already."""
        there = [node for node in nodes if node in self.by_node and not (self.is_new and node)]  # others do not know it
        ranks = [rank for node in there for rank in self.by_node[node]]
        return (
            self._follow(ranks, {rank: self.cursors[rank] for rank in ranks if rank in self.cursors}) if ranks else None
        )

    def _follow(self, ranks: list[int], cursors: dict[int, run_pb2.Cursor]) -> pb.SessionRequest:
        follow = pb.Follow(
            mesh_id=self.mesh_id, run_id=self.run_id, ranks=ranks, from_shown=self._from_shown, cursors=cursors
        )
        return pb.SessionRequest(follow=follow)

    @property
    def is_new(self) -> bool:
        """Whether it waits for its number."""
        return self.submit is not None and not self.submit.run.number

    # ---- what comes ----

    def on_queued(self, queued: pb.Queued) -> None:
        """Nodes have taken it in: were it submitted again, its output would go on where it is."""
        self._outputs.update(dict.fromkeys(queued.nodes, queued.output))

    def on_output(self, output: pb.Output) -> None:
        """Output is passed on."""
        for each in output.ranks:
            self.cursors[each.rank] = each.cursor
            if each.also:
                cursors = each.also_cursors or [each.cursor] * len(each.also)
                self.cursors.update(zip(each.also, cursors, strict=True))

    def on_finished(self, finished: pb.Finished) -> None:
        """Results are passed on."""
        self.left.difference_update(result.rank for result in finished.results)
        for equal in finished.equal:
            self.left.difference_update(equal.ranks)
