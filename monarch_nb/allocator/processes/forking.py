"""Forking the processes of ranks and scripts from a warm template, and fresh ranks in the places of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.processes.specs import Plan, plan_rank, start_directory
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import MeshNotFound, MonarchNbError, ReservationNotFound, SpawnError, UsageError
from monarch_nb.ground.read_at_start import when_read
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.links import TemplateLink
    from monarch_nb.allocator.processes.supervisor import RankProcess
    from monarch_nb.allocator.state.runs import Mesh


class Forking:
    """Makes the processes of a node's meshes, replaces live ranks, and ends those that were replaced.

    Attributes:
        ending: what ends them.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._paths, self._identity, self._state = node, node.paths, node.identity, node.state
        self._records, self._supervisor, self._leases = node.records, node.supervisor, node.leases
        self._restarting = asyncio.Lock()
        self.ending = Tasks()

    async def spawn(self, spec: pb.SpawnRequest) -> Mesh:
        """Fork the mesh's ranks on this node and wait until they are ready."""
        self._leases.check_held(spec.reservation_id)
        store, last_number = pb.StorePlace(), spec.last_number
        store.CopyFrom(spec.store)
        spec.ClearField("store")  # where it is later is in the record
        spec.ClearField("last_number")
        mesh = self._state.add_mesh(spec)
        try:
            for directory in (self._paths.runs(spec.mesh_id), self._paths.blobs(spec.mesh_id)):
                directory.mkdir(parents=True, exist_ok=True)
            record = self._records.meshes.get(spec.mesh_id) or state_pb2.MeshRecord()
            record.spec.CopyFrom(spec)
            mesh.spec = record.spec  # there it is known where the store is
            if store.node_id:
                record.store_moves, record.store_node = store.moves, store.node_id
            self._records.save_mesh(record)
            mesh.last_number = mesh.forgotten = last_number  # no run before is waited for here
            self._records.note_number(spec.mesh_id, last_number)
            with self._leases.expiry.held_up(spec.reservation_id):
                await self.fork_ranks(mesh, sorted(mesh.ranks), dict.fromkeys(mesh.ranks, 0))
        except BaseException:
            self._leases.close_mesh(spec.mesh_id)
            await self._leases.remove_mesh(spec.mesh_id)
            raise
        return mesh

    def rank_directory(self, reservation_id: str, rank: int) -> str:
        """Return where a rank of a reservation's main mesh started; where that has none here, of another mesh."""
        self._state.lease(reservation_id)
        meshes = self._state.meshes_of(reservation_id)
        for mesh in sorted(meshes.values(), key=lambda mesh: mesh.spec.name != MAIN_MESH):
            if rank in mesh.ranks:
                return str(start_directory(mesh.spec, self._workspace(mesh.spec)))
        raise MeshNotFound(f"{self._identity.node_id} has no rank {rank} of that reservation")

    def _workspace(self, spec: pb.SpawnRequest) -> Path | None:
        """Return the node's copy of the notebook's files, if the mesh has one."""
        return self._node.files.workspaces.directory(spec.reservation_id) if spec.in_workspace else None

    async def fork_ranks(self, mesh: Mesh, ranks: list[int], incarnations: dict[int, int]) -> None:
        """Fork a mesh's live ranks; `incarnations` says how often each was restarted."""

        def plan(workspace: Path | None) -> list[Plan]:
            return [plan_rank(self._node, mesh, rank, incarnations[rank], workspace) for rank in ranks]

        for process in await self.fork(mesh, plan):
            self._node.runs.apply(self._state.rank_ready(mesh.spec.mesh_id, process.rank))

    async def fork(
        self,
        mesh: Mesh,
        plan: Callable[[Path | None], list[Plan]],
        script: run_pb2.Script | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> list[RankProcess]:
        """Fork processes on a mesh's slots, and write them down.

        Args:
            plan: told the node's copy of the notebook's files, if it has one, returns what they are to be.
            script: what they execute, when they are no live ranks.
            say: is told what people are to know of it.
        """
        spec = mesh.spec
        self._leases.check_held(spec.reservation_id)  # else a workspace would be made that nobody removes
        workspace = self._workspace(spec)
        if workspace is not None:
            start_directory(spec, workspace).mkdir(parents=True, exist_ok=True)
        template = await self._template(spec, workspace, script, say)
        self._leases.check_held(spec.reservation_id)
        planned = plan(workspace)
        for _, specification in planned:
            specification.gpu_locks.extend(self._node.gpu_locks.files(spec.reservation_id))
        try:
            forked = await self._supervisor.fork_ranks(template, planned)
        except SpawnError as error:
            raise SpawnError(f"{self._identity.node_id}: {error}") from error
        try:
            self._leases.check_held(spec.reservation_id)
            if self._state.mesh(spec.mesh_id) is not mesh:  # nor was it stopped meanwhile
                raise MeshNotFound("the mesh was released while its ranks were being started")
        except (ReservationNotFound, MeshNotFound):
            await self._supervisor.end(forked)
            raise
        for process in forked:
            self._records.save_rank(process.record)
        self._records.flush()
        return forked

    async def _template(
        self, spec: pb.SpawnRequest, workspace: Path | None, script: run_pb2.Script | None, say: Callable[[str], object]
    ) -> TemplateLink:
        """Return the template to fork from: one that has read these variables when it started."""
        templates, python = self._supervisor.templates, spec.python or self._identity.python
        if script is not None and (script.executable or script.shell):  # another program, which starts with them
            return await templates.template(python, spec.preload)
        wanted, program = {**spec.environment}, b""
        if script is not None:
            wanted |= script.environment
            directory = Path(script.directory or start_directory(spec, workspace))
            program = await asyncio.to_thread(program_text, script, directory)
        preload, own, late = await templates.needs_own(python, spec.preload, wanted, program)
        if script is not None and late:
            say(
                f"{Path(script.path).name} sets {', '.join(late)} before it imports what ranks have imported: "
                f"it starts without that, and slower; as fast as ever with --env {late[0]}=…"
            )
        if own and not templates.has(python, preload, own):
            them = "it" if len(own) == 1 else "them"
            say(f"{when_read(own, preload)}: a Python is started with {them}, once")
        return await templates.template(python, preload, own)

    # ---- fresh ranks ----

    async def restart(self, mesh_id: str, ranks: Iterable[int]) -> Mesh:
        """Replace ranks by fresh ones, which answer while the old ones still end; those that hold GPUs end before their
        successors start."""
        chosen = sorted({*ranks})
        async with self._restarting:
            mesh = self._state.mesh(mesh_id)
            if unknown := [rank for rank in chosen if rank not in mesh.ranks]:
                raise UsageError(f"no such ranks here: {unknown}")
            incarnations = {rank: self._next_incarnation(mesh_id, rank) for rank in chosen}
            old = [process for rank in chosen if (process := self._supervisor.ranks.get((mesh_id, rank)))]
            busy = [process for process in old if mesh.ranks[process.rank].running]
            # Room for their successors. From now on nothing but what is written down here tells the allocator after
            # this one to end them: it is on disk together with the successors.
            self._supervisor.retire(old)
            self._records.save_leaving(old)
            for rank in chosen:
                self._node.runs.apply(self._state.rank_restarting(mesh_id, rank))
            self._supervisor.kill(busy)
            try:
                if any(mesh.ranks[rank].gpu_indices for rank in chosen):
                    await self._supervisor.end(old)
                await self.fork_ranks(mesh, chosen, incarnations)
            except (MonarchNbError, OSError) as error:
                for rank in chosen if self._state.meshes.get(mesh_id) is mesh else ():
                    death = run_pb2.Death(likely_cause=f"could not be restarted: {error}")
                    self._node.runs.apply(self._state.rank_died(mesh_id, rank, death))
                raise
            finally:
                self._end_meanwhile(old)
        return mesh

    def _end_meanwhile(self, ranks: list[RankProcess]) -> None:
        async def end() -> None:
            await self._supervisor.end(ranks)
            self._records.delete_leaving(ranks)

        self.ending.start(end())

    def _next_incarnation(self, mesh_id: str, rank: int) -> int:
        if process := self._supervisor.ranks.get((mesh_id, rank)):
            return process.record.incarnation + 1
        return self._records.next_incarnation(mesh_id, rank)


def program_text(script: run_pb2.Script, directory: Path) -> bytes:
    """Return what Python executes of a script that it finds in this directory; nothing of what it finds elsewhere, or
    what can not be read, which who runs it says."""
    whole = directory / os.path.expanduser(script.path)
    files: list[Path | zipfile.Path] = [whole, whole / "__main__.py"]
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        files = [zipfile.Path(whole, "__main__.py")]
    if script.module:
        parts = script.path.split(".")
        packages = [directory.joinpath(*parts[: count + 1]) for count in range(len(parts))]
        files = [*(package / "__init__.py" for package in packages), packages[-1] / "__main__.py"]
        files.append(Path(f"{packages[-1]}.py"))
    texts = []
    for file in files:
        with contextlib.suppress(OSError, KeyError):
            texts.append(file.read_bytes())
    return b"\n".join(texts)
