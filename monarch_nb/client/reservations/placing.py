"""Where the nodes of a reservation have its files: copies of their own, or the files themselves."""

from __future__ import annotations

from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.client.pools.facts.held import HeldReservation, MeshParts
from monarch_nb.client.pools.facts.infos import RIGHTS
from monarch_nb.config import MAIN_MESH
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2


def synced_files(held: HeldReservation) -> SyncedFiles:
    """Return the files of a reservation, as this process keeps them up to date."""
    said = held.nodes[0][1].files if 0 in held.nodes else files_pb2.ReservationFiles()
    if held.facts.right in RIGHTS:
        nodes = held.connections
        return SyncedFiles.get(held.reservation_id, {}, nodes, root="", reload=False, said=said, others=True)
    spec = main_of(held).spec
    copied = copied_nodes(held)
    copies = {node: connection for node, connection in held.connections.items() if node in copied}
    seeing = {node: connection for node, connection in held.connections.items() if node not in copied}
    return SyncedFiles.get(held.reservation_id, copies, seeing, root=spec.root, reload=spec.reload, said=said)


def copied_nodes(held: HeldReservation) -> set[int]:
    """Return the nodes that have copies; those that do not answer are thought to be like the others."""
    if held.facts.right in RIGHTS:  # somebody else's: nothing is synced from here
        return set()
    copied = {node for node, spec in specs_like_main(held).items() if spec.in_workspace}
    return copied | held.absent.keys() if copied else set()


def main_of(held: HeldReservation) -> MeshParts:
    """Return the main mesh of a reservation that can be used."""
    main = held.main
    assert main is not None, f"no node knows the main mesh of {held.facts.name}"
    return main


def specs_like_main(held: HeldReservation) -> dict[int, pb.SpawnRequest]:
    """Return what ranks of the main mesh are started with on each node that answers, by node rank. On a node without
    any it would be the same, where other ranks are there in the directory of these."""
    main, specs = main_of(held).spec, {}
    for node, (_, status) in held.nodes.items():
        here = {mesh.name: mesh.spec for mesh in status.meshes}
        spec = here.get(MAIN_MESH)
        if spec is None:
            spec = pb.SpawnRequest()
            spec.CopyFrom(main)
            for other in here.values():
                spec.directory, spec.in_workspace = other.directory, other.in_workspace
        specs[node] = spec
    return specs
