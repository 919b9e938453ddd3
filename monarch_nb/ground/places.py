"""Where a process stands among those that it works with, and how torchrun says so in its environment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that it works with, as torchrun counts them."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    nodes: int

    @classmethod
    def among(cls, rank: int, ranks: Iterable[int], per_node: int) -> Place:
        """Return the place of a mesh's rank in a world of some of its ranks.

        Args:
            per_node: how many ranks of the mesh each node has.

        Example:
            >>> Place.among(6, [2, 3, 6, 7], per_node=4)
            Place(rank=2, world_size=4, local_rank=0, local_world_size=2, node_rank=1, nodes=2)
        """
        chosen = sorted(ranks)
        nodes = nodes_of(chosen, per_node)
        node = rank // per_node
        here = [each for each in chosen if each // per_node == node]
        return cls(chosen.index(rank), len(chosen), here.index(rank), len(here), nodes.index(node), len(nodes))

    @property
    def variables(self) -> dict[str, str]:
        """What torchrun sets for it."""
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "GROUP_RANK": self.node_rank,
            "GROUP_WORLD_SIZE": self.nodes,
            "NODE_RANK": self.node_rank,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.world_size,
        }
        return {name: str(number) for name, number in numbers.items()}

    @property
    def trainer_defaults(self) -> dict[str, str]:
        """What Lightning needs to train on all of them, where nobody has set it: else it takes one CPU of one node."""
        return {"PL_TRAINER_DEVICES": str(self.local_world_size), "PL_TRAINER_NUM_NODES": str(self.nodes)}


def nodes_of(ranks: Iterable[int], per_node: int) -> list[int]:
    """Return the nodes, by number, on which ranks of a mesh are."""
    return sorted({rank // per_node for rank in ranks})
