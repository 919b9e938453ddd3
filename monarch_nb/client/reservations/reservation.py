"""A reservation, as its holder sees it: nodes, their ranks and files, until it is released."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.hosts import HostMesh, ProcMesh
from monarch_nb.client.comparing.compares import late_variables, reserving
from monarch_nb.client.comparing.report import late_notes
from monarch_nb.client.connections.bridge import background_loop, call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.doctor.diagnosis import Diagnosis
from monarch_nb.client.doctor.doctor import examine
from monarch_nb.client.doctor.environments import PipReport, pip
from monarch_nb.client.files.fetch import FetchReport, FileInfo, fetch_matching, file_info, list_files
from monarch_nb.client.files.fetch import Progress as FetchProgress
from monarch_nb.client.files.sync import Progress as SyncProgress
from monarch_nb.client.files.transfer import SyncReport
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.monarch.workers import monarch
from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import HeldReservation, shared_storage
from monarch_nb.client.pools.infos import ReservationInfo, rank_infos, reservation_info, shares_of
from monarch_nb.client.pools.leasing import Leftover, ReleasedLater, checked, not_released, release
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.client.presenting import panel_of, where_here
from monarch_nb.client.reservations import sharing, taking
from monarch_nb.client.reservations.changing import main_of, synced_files
from monarch_nb.client.reservations.growing import Resized, words
from monarch_nb.client.reservations.jobs import Asking, extend
from monarch_nb.client.reservations.members import Members, TimeListener
from monarch_nb.client.reservations.meshes import LiveActors, Meshes
from monarch_nb.client.reservations.replacing import Replaced
from monarch_nb.client.runs.printed import shown_here
from monarch_nb.client.runs.run import Listener, Run
from monarch_nb.client.saving.asking import finish_behind
from monarch_nb.client.scripts.script import Script
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import MonarchNbError, NodeUnreachable, PoolError, UsageError
from monarch_nb.provision import jobs, provisioner_of
from monarch_nb.shape import Extent
from monarch_nb.times import Duration, seconds_of
from monarch_nb.trust.membership import doubt


class Reservation:
    """A reservation: nodes, slots on each node, and a main mesh of ranks that live until `release()`.

    `reserve` and `attach` return it.

    Attributes:
        name, owner: of the reservation. pool: name of its pool.
        nodes, procs, gpus: how many nodes, and how many CPU ranks or GPUs on each node.
        mesh: the main mesh. meshes: all its meshes, by name.
        shared: the path of the storage that all its nodes see, `$MONARCH_NB_SHARED` in the ranks; empty without one.
        spec: what its ranks were started with, as the first node that answers has it.

    Example:
        >>> dev = monarch_nb.reserve("dev", nodes=2, procs=4)  # doctest: +SKIP
        >>> dev.mesh.run("rank * 2").values  # doctest: +SKIP
        [0, 2, 4, 6, 8, 10, 12, 14]
        >>> dev.status().alive_of_all, dev.nodes, dev.node_names  # doctest: +SKIP
        ('8 of 8', 2, ['node0', 'node1'])
        >>> dev.submit("df -h .").wait(timeout_s=60)  # doctest: +SKIP
        True
        >>> helpers = dev.spawn_procs({"procs": 1}, name="helpers")  # or dev.hosts.spawn_procs  # doctest: +SKIP
        >>> sorted(dev.actors), dev.stop_mesh("helpers")  # doctest: +SKIP
        >>> dev.list_files("."), dev.sync(), dev.add_time_listener(print)  # doctest: +SKIP
        >>> print(dev.doctor())  # doctest: +SKIP
    """

    def __init__(self, pool: Pool, held: HeldReservation) -> None:
        facts = held.facts
        self._pool, self.pool = pool, pool.name
        self.id, self.name, self.owner, self.notebook = facts.reservation_id, facts.name, facts.owner, facts.notebook
        self.procs, self.gpus = facts.procs, facts.gpus
        main = main_of(held)
        self.shared = shared_storage(held)
        self.spec = main.spec
        dead = {info.rank: info.death for info in rank_infos(held, main.spec.mesh_id) if info.death is not None}
        self.mesh = Mesh(main.spec.mesh_id, MAIN_MESH, main.extent, self, main.connections(held), dead)
        self.meshes = Meshes(self, held)
        self.files = synced_files(held)
        self._members = Members(pool, held, self.meshes, self.files)
        self._attachment = self._members.attachment
        self._detach = weakref.finalize(self, self._attachment.close)
        self._detach.atexit = False  # the session ends with the process
        self._attached: dict[tuple[str, ...], Any] = {}
        """Hosts of Monarch's own engine, by their addresses."""
        _in_use.append(weakref.ref(self))

    def __repr__(self) -> str:
        return f"<Reservation {self.name}: {Shape(self.nodes, self.procs, self.gpus)}>"

    def status(self, *, memory: bool = True) -> ReservationInfo:
        """Ask its nodes and return their answers: ranks, runs, limits and nodes that do not answer.

        Args:
            memory: measure the memory of every rank too, which takes some milliseconds for each.

        Raises:
            ReservationNotFound: it was released.
            AccessDenied: its owner no longer shares it with you.
        """
        info = reservation_info(call(self.held(memory=memory)), self.pool)
        if not info.absences or not (said := jobs.trouble(self.pool)):
            return info
        return dataclasses.replace(info, absences=tuple(f"{absence}; {said}" for absence in info.absences))

    async def held(self, *, memory: bool = False) -> HeldReservation:
        """Return the answers of its nodes as they are. Call it on the background loop."""
        return await self._members.held(memory=memory)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self._members.count

    def replace(
        self,
        *nodes: str | int | Sequence[str | int],
        wait: bool | Duration = False,
        time: Duration | None = None,
        progress: Progress | None = None,
    ) -> list[Replaced]:
        """Replace nodes by free nodes of the pool or by new nodes of its engine. New ranks have the same numbers.

        The other ranks keep their variables, and lose their process groups. A replaced node ends its ranks when it
        answers again.

        Args:
            nodes: names or numbers, or a list of them; by default the nodes that do not answer. A node that answers
                loses its ranks at once.
            wait: wait for what others hold, as for `reserve`. The client always waits for an engine; a time is the
                longest.
            time: how long to ask the engine for; by default what is left of the reservation's time.
            progress: called with a line that says what is being done.

        Returns:
            For each node the old and the new one, and the new ranks.

        Raises:
            UsageError: all nodes answer and you name none, or there is no such node.
            CapacityError: no node has enough free. Nothing has changed.
            ReservationConflict: another client has just replaced nodes of the reservation.
            SpawnError: the ranks could not start.

        Example:
            >>> [(one.old, one.new) for one in dev.replace("host3")]  # doctest: +SKIP
            [('host3', 'host4')]
        """
        return self._members.replace(words(*nodes), Asking(wait, time), progress or _nothing)

    def grow(
        self,
        nodes: int | str,
        *,
        mesh: str = "",
        wait: bool | Duration = False,
        time: Duration | None = None,
        progress: Progress | None = None,
    ) -> Resized:
        """Hold more nodes of the pool. If too few are free and an engine brings the nodes, it asks for another job.

        All meshes stay on their nodes with their variables. A new mesh, `meshes["grown"]`, is over all nodes, with as
        many ranks on each as the main mesh.

        Args:
            nodes: how many to hold, or "+2" for two more. If you hold so many, and a mesh is over all of them, nothing
                happens.
            mesh: the name of the new mesh, instead of "grown".
            wait: wait for what others hold, as for `reserve`. The client always waits for an engine; a time is the
                longest.
            time: how long to ask the engine for; by default what is left of the reservation's time.
            progress: called with a line that says what is being done.

        Returns:
            How many nodes you hold now, which are new, and what to run next.

        Raises:
            UsageError: a mesh has that name already, or you hold more nodes already.
            CapacityError: too few nodes have enough free. Nothing has changed.
            NodeUnreachable: a node does not answer, so no ranks can start there.
            ReservationConflict: another client has just changed the nodes.
            SpawnError: ranks could not start on the new nodes. Nothing has changed.

        Example:
            >>> print(dev.grow(4))  # doctest: +SKIP
            dev has 4 nodes: host3, host4 are new
            grown has 16 ranks on all of them: %%mesh --mesh grown runs a cell there; main stays as it is
            >>> dev.meshes["grown"].run("rank").values[-1]  # doctest: +SKIP
            15
        """
        return self._members.grow(nodes, mesh, Asking(wait, time), progress or _nothing)

    def shrink(
        self,
        nodes: int | str | None = None,
        *,
        node: str | int | Sequence[str | int] = (),
        progress: Progress | None = None,
    ) -> Resized:
        """Give nodes back on which no mesh has ranks.

        Args:
            nodes: how many to keep, or "-1" for one less. Nodes that do not answer go first, then the last ones.
            node: the name or number of the node to give back instead, or a list of them.
            progress: called with a line that says what is being done.

        Returns:
            How many nodes you hold now.

        Raises:
            UsageError: a mesh has ranks there (`stop_mesh` ends those of one beside main), or no node would be left.
            ReservationConflict: another client has just changed the nodes.

        Example:
            >>> dev.stop_mesh("grown")  # doctest: +SKIP
            >>> print(dev.shrink(2))  # doctest: +SKIP
            dev has 2 nodes: host3, host4 are given back
        """
        return self._members.shrink(nodes, node, progress or _nothing)

    def stop_mesh(self, name: str) -> list[str]:
        """End the ranks of a mesh beside the main mesh, and forget the mesh. You still hold its nodes.

        Returns:
            The names of nodes that do not answer. The ranks there end when the nodes are back.

        Raises:
            UsageError: it is the main mesh.
            NoSuchMesh: no mesh has that name.
        """
        if name == MAIN_MESH:
            raise UsageError(f"{MAIN_MESH} ends with its reservation: %mesh release {self.name}")
        return call(self.meshes.stop(self.meshes[name].id))

    @property
    def hosts(self) -> HostMesh:
        """Its nodes as a monarch_nb.actor.HostMesh of shape `{"hosts": n}`, on which you can start more processes."""
        return HostMesh.of({"hosts": self.nodes}, self.meshes.addresses)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        bootstrap: Callable[[], Any] | None = None,
    ) -> ProcMesh:
        """Start more rank processes beside the main mesh, without waiting for them. They take no slots of their own.
        On a reservation of GPUs they share its GPUs in turn: rank 0 of a node has the node's first GPU.

        Args:
            per_host: the shape of the processes on each node, as in `{"gpus": 2}`; by default one process.
            name: their name in `%mesh actors` and logs. Processes of the same name are stopped first. If `grow` made
                the mesh of that name, no processes start, and the error comes when you use them.
            env: variables to add to those of the main mesh's ranks; None takes this process's value.
            bootstrap: called in each process before there are actors; may be async.

        Returns:
            A monarch_nb.actor.ProcMesh, here of shape `{"hosts": 2, "gpus": 2}`. Its `stop()` ends the processes, and
            so does `release()`.

        Raises:
            UsageError: the name or the shape is not allowed.

        Example:
            >>> evaluators = dev.spawn_procs({"gpus": 2}, name="evaluators")  # doctest: +SKIP
            >>> graders = evaluators.spawn("graders", Grader)  # doctest: +SKIP
        """
        sizes = dict(per_host or {})
        checked(name or "procs", sizes)
        environment = taking.environment_option(env)

        async def start() -> Sequence[Address]:
            nodes = self.meshes.addresses
            called = name or "procs"
            mesh = await self.meshes.spawn(nodes, sizes, called, environment, replaces=name is not None)
            return mesh.addresses

        extent = Extent({**({} if "hosts" in sizes else {"hosts": self.nodes}), **sizes})
        started = asyncio.run_coroutine_threadsafe(start(), background_loop())
        return ProcMesh.starting(name or "procs", extent, started, bootstrap)

    @property
    def actors(self) -> LiveActors:
        """The actors on its ranks by name, with those that an earlier kernel spawned: `dev.actors["trainers"]`."""
        return LiveActors(self, self.meshes)

    async def all_meshes(self) -> list[Mesh]:
        """Ask the nodes for all meshes, the main mesh first. Call it on the background loop."""
        return await self.meshes.all()

    def actor_infos(self) -> list[ActorInfo]:
        """Return the actors on its ranks, and what they do. Ranks that do not answer are missing."""
        return call(self.meshes.actor_infos())

    @property
    def node_names(self) -> list[str]:
        """The names of its nodes, by number."""
        return [self._members.connections[number].name for number in sorted(self._members.connections)]

    def extend(self, time: Duration, /) -> float:
        """Add to its time limit, and return how many seconds are left now.

        Args:
            time: how much to add: "2h", "1h30m", a timedelta or seconds.

        Raises:
            UsageError: it has no time limit, or you can not extend its job.
            NodeUnreachable: a node does not answer. Nothing changes, because all nodes must agree.
            ReservationNotFound: it was released.

        Example:
            >>> dev.extend("2h")  # doctest: +SKIP
            9000.0
        """
        return extend(self._pool, self.id, self.name, seconds_of(time, "time"))

    def share(self, to: str, right: str = "read") -> str:
        """Let somebody else use the reservation until it ends.

        Args:
            to: the person's name in the pool's certificates.
            right: "read" for output, logs and the panel; "run" to run cells too.

        Returns:
            One line that says why the pool may have nobody of that name; empty when it has.

        Raises:
            UsageError: this right can not be granted.
            NodeUnreachable: a node does not answer. Nothing is granted, because all nodes must agree.
            AccessDenied: somebody else owns the reservation.

        Example:
            >>> dev.share("bob", "run")  # doctest: +SKIP
            >>> dev.shares  # doctest: +SKIP
            {'bob': 'run'}
            >>> dev.unshare("bob")  # doctest: +SKIP
        """
        call(sharing.share(self._pool, self.id, self.name, {to: sharing.checked_grant(right)}))
        return doubt(self.pool, to)

    def unshare(self, to: str) -> None:
        """Take a right back. The output that the person follows ends at once, and their waiting runs are dropped. Their
        running cell goes on until you interrupt it.

        Raises:
            NodeUnreachable: a node does not answer. There the right holds until you call this again.
        """
        call(sharing.unshare(self._pool, self.id, self.name, to))

    @property
    def is_mine(self) -> bool:
        """Whether you own it. Otherwise its owner shares it with you."""
        return self.owner == self.mesh.core.me

    @property
    def full_name(self) -> str:
        """`dev`, or `alice/dev` when somebody else owns it. `attach` takes this name."""
        return self.name if self.is_mine else f"{self.owner}/{self.name}"

    @property
    def shares(self) -> dict[str, str]:
        """The right of each person, "read" or "run", by name."""
        return shares_of(call(self.held()).facts)

    def add_time_listener(self, listener: TimeListener) -> None:
        """Call `listener` on a background thread with one line when the time is nearly up, and when it was up. Call it
        with an empty text when the line before no longer holds, because somebody extended the time."""
        self._attachment.add_listener(listener)

    def panel(self) -> Any:
        """Return its live panel for the output of a notebook's cell: ranks, runs, logs, restart and release.

        Raises:
            UsageError: this is no notebook, or the notebook has not loaded the extension.

        Example:
            >>> dev.panel()  # the last line of a cell  # doctest: +SKIP
        """
        return panel_of(self)

    @property
    def is_attached(self) -> bool:
        """Whether this process uses it, so that no idle time counts."""
        return self._detach.alive

    def detach(self) -> None:
        """Stop using it from this process. You still hold it, and its idle time may begin.

        Example:
            >>> dev.detach()  # doctest: +SKIP
        """
        self._detach()

    def sync(self, *, overwrite: bool = False, progress: SyncProgress | None = None) -> SyncReport:
        """Copy changed files to the nodes that have copies of your files. `Mesh.run` does so by itself.

        Args:
            overwrite: also replace files that ranks wrote or changed.
            progress: called with what is done, how many bytes of it are done, and of how many bytes.

        Raises:
            FilesError: a node could not take the files. Its files are unchanged.
        """
        return self.files.sync(overwrite=overwrite, progress=progress or _nothing)

    def _node_of(self, rank: int) -> Connection:
        """Return the node of a rank of the main mesh. Nodes that came later, and have none, come after these."""
        core = self.mesh.core
        return self._members.connections.get(rank // core.ranks_per_node) or core.connection_of(rank)

    def list_files(self, path: str = ".", *, rank: int = 0) -> list[FileInfo]:
        """Return the files at `path` on a rank's node. A relative path starts in the rank's directory.

        Raises:
            FilesError: the path does not exist, or can not be read.
        """
        connection = self._node_of(rank)
        return [file_info(entry) for entry in call(list_files(connection, self.id, rank, path)).entries]

    def fetch(
        self,
        path: str,
        *,
        rank: int = 0,
        to: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        progress: FetchProgress | None = None,
    ) -> FetchReport:
        """Copy a file or directory from a rank's node to this computer.

        Args:
            path: on the node. A relative path starts in the rank's directory. A pattern such as "checkpoints/*.pt"
                means all files that match; then `to` is a directory.
            to: the path here. By default a relative path stays the same, below the current directory, and an absolute
                path becomes its last name there. If `to` ends in a slash, or names a directory that exists and `path`
                is a file, it is the directory to copy into.
            overwrite: also replace files that exist here and differ.
            progress: called while content arrives.

        Raises:
            FilesError: `path` does not exist, or the copy would replace another file.

        Example:
            >>> dev.fetch("checkpoints/last.pt", rank=4).path  # doctest: +SKIP
            PosixPath('/home/me/project/checkpoints/last.pt')
        """
        connection = self._node_of(rank)
        here = None if to is None else os.path.expanduser(to)
        say = progress or _nothing
        return call(fetch_matching(connection, self.id, rank, path, to=here, overwrite=overwrite, progress=say))

    def run(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        beside: bool = False,
        timeout_s: float | None = None,
        listener: Listener | None = None,
    ) -> Run:
        """Run a shell command once on every node, and wait until all have finished. Ctrl-C ends it on every node.

        The notebook's cell shows the output live; a script prints it line by line. The label of a line is the first
        rank of its node. The command starts in the ranks' directory, with NODE_RANK, NNODES, NPROC_PER_NODE,
        MASTER_ADDR and MASTER_PORT, each also as PET_…. So torchrun needs no flags to use all that you hold.

        Args:
            command: one line for the shell.
            env: variables to add.
            beside: do not wait for scripts and other commands, and do not let them wait for this one.
            timeout_s: stop waiting after this time; the command goes on.
            listener: called with the run's events on a background thread. Then nothing is shown.

        Returns:
            The finished run. `run.values` has the exit codes, one per node.

        Raises:
            RunFailed: the command failed on a node, which the error names. The other nodes ended it.
            NodeUnreachable, TimeoutError, FilesError: as `Mesh.run`.

        Example:
            >>> dev.run("torchrun train.py --lr 3e-4", env={"NCCL_DEBUG": "INFO"}).values  # doctest: +SKIP
            [0, 0]
        """
        script = Script(command, shell=True, beside=beside, environment=taking.environment_option(env))
        nodes = self.mesh.one_per_node
        return nodes.run_program(script, timeout_s=timeout_s, listener=listener or shown_here(nodes.ranks))

    def submit(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        beside: bool = False,
        listener: Listener | None = None,
    ) -> Run:
        """Like `run`, but return at once and show nothing. `run.logs()` of the result has the output."""
        script = Script(command, shell=True, beside=beside, environment=taking.environment_option(env))
        return self.mesh.one_per_node.start_script(script, listener=listener)

    def doctor(self) -> Diagnosis:
        """Compare this process with every node: Python, torch, CUDA, the packages that are imported here, clocks,
        disks, limits and shared storage. Print the result, or read its `differences`. Of ranks that are idle, its
        `notes` name the variables that were set too late to count."""
        copied = {connection.name for connection in self.files.connections.values()}
        diagnosis = examine(
            f"{self.name}: {Shape(self.nodes, self.procs, self.gpus)}",
            [self._members.connections[rank] for rank in sorted(self._members.connections)],
            python=self.spec.python,
            shared=self.shared,
            directory=self.files.root or ("" if copied else self.spec.directory),
            copied=copied,
        )
        with contextlib.suppress(MonarchNbError):  # a rank died meanwhile, or only its owner may ask it
            late = late_notes(late_variables(self.mesh), reserving(self))
            return dataclasses.replace(diagnosis, notes=(*diagnosis.notes, *late))
        return diagnosis

    def pip(self, *arguments: str, run: Callable[[Mesh, str], object] | None = None) -> PipReport:
        """Run pip once in each environment that the nodes have, on one rank of it.

        Ranks keep modules that they have imported already, until you restart the ranks.

        Args:
            arguments: those of pip, as in `pip("install", "einops")`.
            run: a function that runs code on a mesh to the end; by default `Mesh.run`.

        Raises:
            RunFailed: pip failed in an environment. The output of the run says why.
            RankDead: a node has no living rank.

        Example:
            >>> print(dev.pip("install", "einops"))  # doctest: +SKIP
        """
        widest = max(self.meshes.now(), key=lambda mesh: mesh.extent["hosts"])
        return pip(widest, widest.core.connections, self.spec.python, arguments, run or Mesh.run)

    def _finish_saves(self) -> None:
        """Wait until what this process has its ranks save in the background is on disk."""
        if any(core.saves_behind for core in MeshCore.of_reservation(self.id)):
            with contextlib.suppress(MonarchNbError):  # nodes do not answer: then nobody saves
                for mesh in self.meshes.now():
                    finish_behind(mesh)

    def release(self, *, progress: Progress | None = None) -> list[Leftover]:
        """End its ranks, give its slots back, and end the job of its nodes. It asks nothing, and twice is fine.

        One node has to answer. When others are back, it has them end their ranks. On a local pool it starts allocators
        that died again, and they end the ranks.

        Args:
            progress: called with a line that says what is being done.

        Returns:
            Where what ranks printed is kept, and what they wrote into copies of files; and the nodes that did not
            answer.

        Raises:
            NodeUnreachable: no node that exists answered. It is still held, and its ranks go on.
            PoolError: the job could not be ended, or an allocator that died did not start again.

        Example:
            >>> dev.release()  # doctest: +SKIP
        """
        self._pool.revive(progress or _nothing)
        self._finish_saves()
        job = jobs.job_of_pool(self._pool.name)
        exist = {node.address for node in provisioner_of(self._pool.name).nodes(pool=self._pool.name)}
        exist_names = {each.name for each in self._members.connections.values() if each.address in exist}
        with self._attachment.ends_here():
            released = call(release(self._members.connections.values(), self.id, self.owner, by=where_here()))
            for error in released.failed if job is None or job.reservation != self.name else ():
                if not isinstance(error, NodeUnreachable) or error.node in exist_names:
                    raise not_released(self.name, error)
        self.files.close()
        self.meshes.close()
        self.detach()
        if job is not None and job.reservation == self.name:
            try:
                untold = jobs.end_all(job.pool)
            except PoolError as failure:
                told = [f"{self.name}: its ranks have ended, but {failure}", *map(str, released.kept)]
                raise PoolError("\n".join(told)) from None
            return [*released.kept, *map(ReleasedLater, untold)]
        later = [one for one in released.later if one.host in exist_names]
        return [*released.kept, *later, *released.logs]

    monarch = monarch


_in_use: list[weakref.ref[Reservation]] = []


def in_use() -> list[Reservation]:
    """Return the reservations that this process uses, oldest first."""
    _in_use[:] = [reference for reference in _in_use if (one := reference()) is not None and one.is_attached]
    return [one for reference in _in_use if (one := reference()) is not None]


def _nothing(*_: object) -> None:
    pass
