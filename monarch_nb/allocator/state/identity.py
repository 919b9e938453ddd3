"""Who a node is, and what it offers: settled when its allocator starts."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_nb.proto import allocator_pb2 as pb


@dataclass(frozen=True)
class Identity:
    """One node, as clients are told of it.

    Attributes:
        node_id: "node0"; unique in the pool.
        address: where other nodes, and clients on other machines, reach it.
        gpus: those that it offers.
        python: the ranks', unless a mesh names another.
        store_host: address of the interface on which stores and collectives listen.
        interface: name of that interface.
        isolated: it sees no files of clients, even when they are on this machine.
        token: another one after every start.
    """

    node_id: str
    address: str
    gpus: list[pb.Gpu]
    python: str
    store_host: str
    interface: str
    isolated: bool
    token: str
