"""More nodes for a reservation, or fewer: what would become of it, and what would be lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch_nb.client.pools.facts.choosing import Shape, choose_nodes, lacking
from monarch_nb.client.reservations.nodes.growing import places_to_leave
from monarch_nb.errors import CapacityError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.panel.refusal import Refused, in_short
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Provisioner, jobs


@dataclass(frozen=True)
class Resize:
    """A reservation that is to have another number of nodes.

    Attributes:
        held: the reservation, as the view has it.
        away: the names of its nodes that do not answer.
        nodes: how many nodes to hold.
        mesh: the name of the mesh that is to be over all of them, one that is there or a new one.
    """

    held: Json
    away: frozenset[str]
    nodes: int
    mesh: str

    @classmethod
    def of(cls, view: Json, held: Json, nodes: int, mesh: str) -> Resize:
        """Return it, or raise Refused: there are so many, or ranks are to start where nobody answers, or to end where
        nobody has said so."""
        nowhere = {"state": "silent"}
        away = frozenset(name for name in held["node_ids"] if view["nodes"].get(name, nowhere)["state"] != "ok")
        resize = cls(held, away, nodes, mesh)
        if nodes == held["nodes"] and (resize.into is None or len(resize._nodes_of(resize.into)) == nodes):
            raise _refused(f"{held['name']} has {counted(nodes, 'node')} already")
        resize._check_meshes()
        left = sorted(away.difference(resize.leaving))
        if left and (resize.is_growing or resize.into):
            are = "does" if len(left) == 1 else "do"
            raise _refused(f"{', '.join(left)} {are} not answer: Replace nodes… first, or have fewer nodes")
        return resize

    @property
    def is_growing(self) -> bool:
        return self.nodes >= int(self.held["nodes"])  # as many: for a mesh that is not on all of them

    @property
    def leaving(self) -> list[str]:
        """The names of the nodes that are given back."""
        if self.is_growing:
            return []
        names = self.held["node_ids"]
        away = [place for place, name in enumerate(names) if name in self.away]
        return [names[place] for place in places_to_leave(dict(enumerate(names)), away, self.nodes, ())]

    @property
    def into(self) -> Json | None:
        """The mesh whose ranks start anew; None when all stay as they are."""
        if self.is_growing:
            return next((mesh for mesh in self.held["meshes"] if mesh["name"] == self.mesh), None)
        return next(iter(self._concerned()), None)

    @property
    def ranks(self) -> str:
        """How many the mesh has then whose ranks are new."""
        like = self.into or self.held["meshes"][0]
        return counted(self.nodes * len(like["ranks"]) // len(self._nodes_of(like)), "rank")

    def prospect(self, replies: Iterable[pb.StatusReply], provisioner: Provisioner, pool: str) -> str:
        """Return what would become of the reservation, or raise Refused.

        Args:
            replies: of the nodes that answer.
        """
        if self.is_growing:
            nodes = self._more(list(replies), provisioner, pool)
        else:
            nodes = f"{', '.join(self.leaving)} given back"
        if self.into:
            return f"{nodes}; {self.into['name']} has {self.ranks} then, all new"
        return f"{nodes}; {self.mesh} has {self.ranks} then, others stay" if self.is_growing else nodes

    def _more(self, asked: list[pb.StatusReply], provisioner: Provisioner, pool: str) -> str:
        """Return which nodes come, or raise Refused."""
        if self.nodes == self.held["nodes"]:
            return "no node besides"
        others = [reply.node for reply in asked if self.held["id"] not in _held_on(reply)]
        shape = Shape(self.nodes - self.held["nodes"], self.held["procs"], self.held["gpus"])
        try:
            chosen = choose_nodes(shape, others, besides=len(asked) - len(others))
        except CapacityError as error:
            if job := jobs.job_of_pool(pool):
                return f"asks {job.on} for {counted(lacking(shape, others), 'node')} more"
            if becomes := provisioner.prospect(shape.nodes, shape.procs, [reply.node for reply in asked], pool=pool):
                return f"the {provisioner.title} becomes {becomes} for it"
            text = in_short(error) if others else "the pool has no other node that answers"
            if not others and provisioner.options(pool=pool):
                text += ": Add nodes… (at Nodes) makes it larger"
            raise _refused(text) from None
        return f"{', '.join(others[index].node_id for index in chosen)} besides"

    def _concerned(self) -> list[Json]:
        """Return the meshes that have ranks on nodes that are given back."""
        return [mesh for mesh in self.held["meshes"] if not self._nodes_of(mesh).isdisjoint(self.leaving)]

    def _check_meshes(self) -> None:
        """Raise Refused when one of several meshes has to be stopped first."""
        concerned = self._concerned()
        names = " and ".join(mesh["name"] for mesh in concerned)
        where = ", ".join(self.leaving)
        if len(concerned) > 1:
            beside = next(mesh["name"] for mesh in concerned if mesh["name"] != "main")
            raise _refused(f"{names} have ranks on {where}: %mesh stop {beside} ends those of one first")
        stay = set(self.held["node_ids"]).difference(self.leaving)
        if concerned and not stay <= self._nodes_of(concerned[0]):
            raise _refused(f"{names} has ranks on {where}, but not on all nodes: %mesh stop {names} ends them first")

    def _nodes_of(self, mesh: Json) -> set[str]:
        """Return the names of the nodes that a mesh has ranks on."""
        names = {rank["node"] for rank in mesh["ranks"]}
        return names - {""} | (set(self.away) if "" in names else set())  # of a node that has not told since


def _held_on(reply: pb.StatusReply) -> list[str]:
    return [status.reservation_id for status in reply.reservations]


def _refused(text: str) -> Refused:
    return Refused(409, text, {"nodes": text})
