"""Reservations: taken once, found again by any later process, released by name."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from monarch_nb import config
from monarch_nb.actor.engine.outside import Address
from monarch_nb.actor.hosts import HostMesh, ProcMesh
from monarch_nb.client.connections.bridge import background_loop, call
from monarch_nb.client.doctor.diagnosis import Diagnosis
from monarch_nb.client.doctor.doctor import examine
from monarch_nb.client.doctor.environments import PipReport
from monarch_nb.client.files.fetch import FetchReport, FileInfo, fetch_matching, file_info, list_files
from monarch_nb.client.files.fetch import Progress as FetchProgress
from monarch_nb.client.files.sync import Progress as SyncProgress
from monarch_nb.client.files.sync_report import SyncReport
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.meshes.pip import pip
from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.pools.beside import checked
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.conflicts import Asked, shared_storage
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.infos import (
    ReservationInfo,
    rank_infos,
    reservation_info,
    shared_no_longer,
    shares_of,
)
from monarch_nb.client.pools.pool import Pool, Progress, SpawnOptions, Terms, pool_named
from monarch_nb.client.pools.releasing import KeptFiles, ReleasedLater, release
from monarch_nb.client.presenting import panel_of, where_here
from monarch_nb.client.reservations import arguments, sharing
from monarch_nb.client.reservations.actors import LiveActors
from monarch_nb.client.reservations.attachment import Attachment, TimeListener, all_end_here
from monarch_nb.client.reservations.elastic import Elastic
from monarch_nb.client.reservations.extending import extend
from monarch_nb.client.reservations.finding import find
from monarch_nb.client.reservations.jobs import JobRequest, nodes_of_job
from monarch_nb.client.reservations.meshes import Meshes
from monarch_nb.client.reservations.placing import main_of, synced_files
from monarch_nb.client.reservations.taking import give_back, taken
from monarch_nb.client.runs.printed import shown_here
from monarch_nb.client.runs.run import Listener, Run
from monarch_nb.client.scripts.script import Script
from monarch_nb.config import MAIN_MESH
from monarch_nb.errors import NodeUnreachable, PoolError, UsageError
from monarch_nb.provision import jobs, provisioner_of
from monarch_nb.shape import Extent
from monarch_nb.times import Duration, seconds_of
from monarch_nb.trust.membership import doubt

DEFAULT_NAME = "main"


class Reservation(Elastic):
    """What a user holds: nodes, slots on each, and a main mesh of ranks that live until `release()`.

    Attributes:
        pool: name of the pool that it is in.
        shared: the storage that all its nodes see, `$MONARCH_NB_SHARED` in the ranks; empty when none was named.
        spec: what its ranks were started with, as the first node that answers has it.

    Example:
        >>> dev = monarch_nb.reserve("dev", nodes=2, procs=4)  # doctest: +SKIP
        >>> dev.mesh.run("rank * 2").values  # doctest: +SKIP
        [0, 2, 4, 6, 8, 10, 12, 14]
    """

    def __init__(self, pool: Pool, held: HeldReservation) -> None:
        facts = held.facts
        self._pool, self.pool = pool, pool.name
        self.id, self.name, self.owner, self.notebook = facts.reservation_id, facts.name, facts.owner, facts.notebook
        self.nodes, self.procs, self.gpus = facts.nodes, facts.procs, facts.gpus
        self._connections, self._revision = held.connections, held.revision
        main = main_of(held)
        self.shared = shared_storage(held)
        self.spec = main.spec
        dead = {
            info.rank: info.death
            for info in rank_infos(held, main.spec.mesh_id)
            if info.state == "dead" and info.death is not None
        }
        self.mesh = Mesh(main.spec.mesh_id, MAIN_MESH, main.extent, self, main.connections(held), dead)
        self.meshes = Meshes(self, held)
        self.files = synced_files(held)
        on_change = WeakMethod(self._on_members_changed)
        self._attachment = Attachment(
            self._connections, self.id, self.name, self.files.record, pool.note_end, on_change
        )
        self._detach = weakref.finalize(self, self._attachment.close)
        self._detach.atexit = False  # the session ends with the process
        _in_use.append(weakref.ref(self))

    def __repr__(self) -> str:
        return f"<Reservation {self.name}: {Shape(self.nodes, self.procs, self.gpus)}>"

    def status(self, *, memory: bool = True) -> ReservationInfo:
        """Return what its nodes say now.

        Args:
            memory: measure that of every rank too, which takes some milliseconds each.

        Raises:
            ReservationNotFound: it was released.
            AccessDenied: its owner shares it with us no longer.
        """
        info = reservation_info(call(self.held(memory=memory)), self.pool)
        if not info.absences or not (said := jobs.trouble(self.pool)):
            return info
        return dataclasses.replace(info, absences=tuple(f"{absence}; {said}" for absence in info.absences))

    async def held(self, *, memory: bool = False) -> HeldReservation:
        """Return what its nodes say, as they say it. On the background loop."""
        held = await self._pool.held(self.id, self.name, memory=memory)
        if over := shared_no_longer(held.facts):
            raise over
        return held

    @property
    def hosts(self) -> HostMesh:
        """Its nodes, on which more processes can be started: a monarch_nb.actor.HostMesh `{"hosts": n}`."""
        return HostMesh.of({"hosts": self.nodes}, self.meshes.addresses)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        bootstrap: Callable[[], Any] | None = None,
    ) -> ProcMesh:
        """Start more rank processes beside the main mesh, without waiting for them. They share its slots: they are not
        counted, and on a reservation of GPUs these go round among them, rank 0 of a node having the first one.

        Args:
            per_host: how many on each node, in which shape: `{"gpus": 2}`; one when left out.
            name: by which `%mesh actors` and logs know them. Those of the same name are stopped first, but for one
                that `grow` has made: then the processes are not started, and using them says why.
            env: variables to add to those of the main mesh's ranks; None takes this process's value.
            bootstrap: called in each process before there are actors; may be async.

        Returns:
            A monarch_nb.actor.ProcMesh, `{"hosts": 1, "gpus": 2}`; its `stop()` ends the processes, and so does
            `release()`.

        Raises:
            UsageError: a name or a shape that can not be had.

        Example:
            >>> evaluators = dev.spawn_procs({"gpus": 2}, name="evaluators")  # doctest: +SKIP
            >>> graders = evaluators.spawn("graders", Grader)  # doctest: +SKIP
        """
        sizes = dict(per_host or {})
        checked(name or "procs", sizes)
        environment = arguments.environment_option(env)

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
        """The actors on its ranks by name, also those that an earlier kernel has spawned."""
        return LiveActors(self, self.meshes)

    async def all_meshes(self) -> list[Mesh]:
        """Ask the nodes for the meshes, the main one first. On the background loop."""
        return await self.meshes.all()

    def actor_infos(self) -> list[ActorInfo]:
        """Return the actors of its ranks and what they do; ranks that do not answer are missing."""
        return call(self.meshes.actor_infos())

    @property
    def node_names(self) -> list[str]:
        """What its nodes are called, by number."""
        return [self._connections[number].name for number in sorted(self._connections)]

    def extend(self, time: Duration, /) -> float:
        """Add to its time limit, as if it had been reserved for longer; return how many seconds are left now.

        Args:
            time: "2h", "1h30m", a timedelta or seconds.

        Raises:
            UsageError: it has no time limit, or is in a job that you can not extend.
            NodeUnreachable: a node does not answer: nothing is changed, for all must agree.
            ReservationNotFound: it was released.
        """
        return extend(self._pool, self.id, self.name, seconds_of(time, "time"))

    def share(self, to: str, right: str = "read") -> str:
        """Let somebody else see its output, logs and panel ("read"), or run cells on it too ("run"), until it ends.

        Args:
            to: a name, as the pool's certificates have it.

        Returns:
            Why nobody may be called so, in a line; empty when somebody is.

        Raises:
            UsageError: that can not be granted.
            NodeUnreachable: a node does not answer: nothing is granted, for all must agree.
            AccessDenied: it is another's.

        Example:
            >>> dev.share("bob", "run")  # doctest: +SKIP
        """
        call(sharing.share(self._pool, self.id, self.name, {to: sharing.checked_grant(right)}))
        return doubt(self.pool, to)

    def unshare(self, to: str) -> None:
        """End what was granted to somebody: what they follow ends at once, and what they have queued is dropped. A cell
        of theirs that runs goes on, until you interrupt it.

        Raises:
            NodeUnreachable: a node does not answer: there it goes on until this is said again.
        """
        call(sharing.unshare(self._pool, self.id, self.name, to))

    @property
    def is_mine(self) -> bool:
        """Whether we hold it; else its owner shares it with us."""
        return self.owner == self.mesh.core.me

    @property
    def full_name(self) -> str:
        """`dev`, or `alice/dev` when it is not ours: what `attach` takes."""
        return self.name if self.is_mine else f"{self.owner}/{self.name}"

    @property
    def shares(self) -> dict[str, str]:
        """What is granted, "read" or "run", by name."""
        return shares_of(call(self.held()).facts)

    def add_time_listener(self, listener: TimeListener) -> None:
        """Call `listener` on a background thread with one line when the time is nearly up and when it was; with an
        empty text when the line before does not hold any more (somebody extended the time)."""
        self._attachment.add_listener(listener)

    def panel(self) -> Any:
        """Return its live panel, for the output of a notebook's cell: ranks, what they run, logs, restart, release.

        Raises:
            UsageError: this is no notebook, or one without the extension.
        """
        return panel_of(self)

    @property
    def is_attached(self) -> bool:
        """Whether this process uses it."""
        return self._detach.alive

    def detach(self) -> None:
        """Use it no longer from this process, as far as its idle limit is concerned; it is held on."""
        self._detach()

    def sync(self, *, overwrite: bool = False, progress: SyncProgress | None = None) -> SyncReport:
        """Bring files that changed to the nodes that have copies of them; `Mesh.run` does so by itself.

        Args:
            overwrite: also files that ranks wrote or changed.
            progress: told what is done, how many bytes of it, and of how many.

        Raises:
            FilesError: a node could not take them; it has what it had.
        """
        return self.files.sync(overwrite=overwrite, progress=progress or _nothing)

    def list_files(self, path: str = ".", *, rank: int = 0) -> list[FileInfo]:
        """Return what lies at `path` on a rank's node; relative paths start in the rank's directory.

        Raises:
            FilesError: there is nothing, or it can not be read.
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
        """Bring a file or directory from a rank's node to this computer.

        Args:
            path: on the node; relative ones start in the rank's directory. Or a pattern, as "checkpoints/*.pt": all
                that match, with `to` into that directory.
            to: where it is to be here; by default a relative path is the same here, below the current directory, and
                an absolute one gets its last name there. With a slash at its end, or for a file the name of a
                directory that exists: into that directory.
            overwrite: also files that exist here and differ.
            progress: called while content arrives.

        Raises:
            FilesError: it does not exist, or would replace something else.

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
        """Run a line of the shell once on every node, and wait until all have finished. Ctrl-C ends it everywhere.

        What it prints is shown live in the notebook's cell, and else printed line by line, labelled by each node's
        first rank.

        It begins in the ranks' directory, with NODE_RANK, NNODES, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT, and these
        as PET_… too, by which torchrun needs no flags to run on all that is held.

        Args:
            env: variables that are added.
            beside: do not wait for scripts and other commands, nor let them wait for this one.
            timeout_s: give up waiting after this time; it goes on.
            listener: called with the run's events on a background thread, and nothing is shown.

        Returns:
            The finished run; `run.values` are the exit codes by node.

        Raises:
            RunFailed: it failed on a node, which is named. The others were ended then.
            NodeUnreachable, TimeoutError, FilesError: as `Mesh.run`.

        Example:
            >>> dev.run("torchrun train.py --lr 3e-4", env={"NCCL_DEBUG": "INFO"}).values  # doctest: +SKIP
            [0, 0]
        """
        script = Script(command, shell=True, beside=beside, environment=arguments.environment_option(env))
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
        """As `run`, but return at once, and show nothing: `run.logs()` has what it prints."""
        script = Script(command, shell=True, beside=beside, environment=arguments.environment_option(env))
        return self.mesh.one_per_node.start_script(script, listener=listener)

    def doctor(self) -> Diagnosis:
        """Compare this process with every node: Python, torch, CUDA, the packages that are imported here, clocks,
        disks, limits and shared storage. `print` it, or read its `differences`."""
        copied = {connection.name for connection in self.files.connections.values()}
        return examine(
            f"{self.name}: {Shape(self.nodes, self.procs, self.gpus)}",
            [self._connections[rank] for rank in sorted(self._connections)],
            python=self.spec.python,
            shared=self.shared,
            directory=self.files.root or ("" if copied else self.spec.directory),
            copied=copied,
        )

    def pip(self, *arguments: str, run: Callable[[Mesh, str], object] | None = None) -> PipReport:
        """Run pip in the environment of all nodes: once in each that differs from the others', on one rank of it.

        Modules that ranks have imported already stay as they are until these are restarted.

        Args:
            arguments: pip's, as in `pip("install", "einops")`.
            run: runs code on a mesh to the end; by default `Mesh.run`.

        Raises:
            RunFailed: it failed somewhere; the output of the run says why.
            RankDead: no rank of some node lives.
        """
        widest = max(self.meshes.now(), key=lambda mesh: mesh.extent["hosts"])
        return pip(widest, widest.core.connections, self.spec.python, arguments, run or Mesh.run)

    def release(self, *, progress: Progress | None = None) -> list[KeptFiles | ReleasedLater]:
        """End its ranks and give its slots back; return what these wrote into copies of files, and where it is kept;
        and which nodes did not answer. When such a node answers again, the other nodes have it end its ranks. A job of
        these nodes is ended.

        Nothing is asked; releasing twice is fine. Allocators of a local pool that died are started again: they end the
        ranks that these have left. When no node of a pool of hosts answers, this computer remembers it: whatever asks
        that pool from here next has the nodes that do answer end their ranks.

        Args:
            progress: told what is being done.

        Raises:
            NodeUnreachable: no node that exists did answer, and nothing can be remembered: ranks go on.
            PoolError: the job could not be ended, or an allocator that died did not start again.
        """
        self._pool.revive(progress or _silent)
        job = jobs.job_of_pool(self._pool.name)
        with self._attachment.ends_here():
            released = call(release(self._connections.values(), self.id, self.owner, by=where_here()))
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
        exist = {node.address for node in provisioner_of(self._pool.name).nodes(pool=self._pool.name)}
        exist_names = {connection.name for connection in self._connections.values() if connection.address in exist}
        for error in released.failed:
            if not isinstance(error, NodeUnreachable) or error.node in exist_names:
                raise error
        return [*released.kept, *(later for later in released.later if later.host in exist_names)]


_in_use: list[weakref.ref[Reservation]] = []


def in_use() -> list[Reservation]:
    """Return the reservations that this process uses, the newest last."""
    _in_use[:] = [reference for reference in _in_use if (one := reference()) is not None and one.is_attached]
    return [one for reference in _in_use if (one := reference()) is not None]


def reserve(
    name: str | None = None,
    /,
    *,
    nodes: int = 1,
    procs: int | None = None,
    gpus: int | None = None,
    pool: str | None = None,
    on: str | None = None,
    on_arguments: Sequence[str] = (),
    python: str | None = None,
    env: Mapping[str, str | None] | None = None,
    preload: Sequence[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    files: str | os.PathLike[str] | bool = True,
    reload: bool | None = None,
    shared: str | os.PathLike[str] | None = None,
    time: Duration | None = None,
    idle: Duration | None = None,
    force_busy: bool = False,
    wait: bool | Duration = False,
    replace: bool = False,
    share: Mapping[str, str] | None = None,
    notebook: str | None = None,
    progress: Progress | None = None,
) -> Reservation:
    """Reserve nodes and start a rank in every slot; the same call again returns the same live reservation.

    Starts the local pool when it is not up. One that started by itself gets the nodes that are missing; one that holds
    nothing takes the shape that is asked for.

    Args:
        name: how it is found again. nodes: how many.
        procs: CPU ranks per node. gpus: GPUs per node, one rank each. Exactly one of them.
        pool: name of one that there is: only the default local pool is started by itself.
        on: what is asked for nodes instead, "slurm", "ssh:lab": they come as a job of its own, which release() ends.
            Where this process is in an allocation that has so much, its nodes are taken.
        on_arguments: for that alone, as in `["--partition=a100"]`. python: the ranks' python; by default this one.
        env: variables to add to the ranks' environment; None takes this process's value.
        preload: modules that ranks have imported already; by default torch.
        directory: where ranks start; by default the notebook's directory, else the current one.
        files: the directory whose files ranks work with, and where they start when the notebook is not in it; True for
            the project that `directory` is in, False for none. A home directory is never copied: nodes that do not
            see it have no files then.
        reload: whether ranks reload modules that changed before each run; by default as the project says, else True.
            Of a reservation that is held already it changes that, for all its kernels.
        shared: storage that all nodes see, for data sets and checkpoints: `$MONARCH_NB_SHARED` in the ranks.
        time: how long it is held ("8h", a timedelta, seconds): then it is released, also while a cell runs, as Slurm
            does. By default until it is released. A reservation that is held already keeps its limits.
        idle: how long it is held while no cell runs and no client is attached.
        force_busy: take GPUs too on which other people's programs compute, where no others are free.
        wait: for what others hold: True, or how long at most. Who came first is first; `progress` is told the place.
        replace: release a reservation of the same name first. progress: told what is being done.
        share: who else may see it ("read") or run cells on it too ("run"), by name.
        notebook: path of the notebook that holds it, which finds it again.

    Raises:
        UsageError: arguments that make no sense.
        NoSuchPool: `pool` is no name of a pool; the message lists those that there are.
        CapacityError: the pool has not that much, or not that much free.
        ReservationConflict: the name is held with another shape, or with another `python`, `env`, `preload`,
            `directory`, `files` or `shared` than asked for; what is not said is as it is held.
        SharedStorageError: a node does not see `shared`; nothing is reserved.
        SpawnError: ranks could not be started (a broken preload: PreloadError).
        NodeUnreachable: it is held, and a node of it does not answer.

    Example:
        >>> dev = monarch_nb.reserve("dev", nodes=2, procs=4, idle="2h")  # doctest: +SKIP
    """
    name = arguments.checked_name(name or DEFAULT_NAME)
    shape = arguments.checked_shape(nodes, procs, gpus)
    time_s, idle_s = arguments.limit_of(time, "time"), arguments.limit_of(idle, "idle")
    say = progress or _silent
    grants = {to: sharing.checked_grant(right) for to, right in (share or {}).items()}
    longest_s = None if isinstance(wait, bool) else seconds_of(wait, "wait")
    start = arguments.working_directory(directory, notebook)
    root, reloads = arguments.project_of(start, files, reload)
    if root and not Path(start).is_relative_to(root):
        if directory is not None:
            raise UsageError(f"ranks are to start in {start}, which is not below {root}")
        start = root
    options = SpawnOptions(
        directory=start,
        root=root,
        reload=reloads,
        python=python or "",
        preload=config.DEFAULT_PRELOAD if preload is None else tuple(preload),
        environment=arguments.environment_option(env) | arguments.shared_option(shared),
    )
    asked = Asked(
        shape,
        python=python,
        environment=env,
        preload=preload,
        directory=None if directory is None else start,
        files=None if files is True else root,
        shared=options.shared if shared is not None else None,
    )
    request = JobRequest(on, tuple(on_arguments), name, shape, time_s, longest_s, replace, tuple(options.preload))
    with nodes_of_job(request, pool, say) as (in_pool, most_s):
        chosen = pool_named(in_pool)
        options = dataclasses.replace(options, python=python or chosen.default_python)
        terms = Terms(notebook or "", most_s, idle_s, force_busy)
        here = [one for one in in_use() if one.is_mine and (one.pool, one.name) == (chosen.name, name)]
        known = {one.id: list(one._connections.values()) for one in here}
        with all_end_here(one._attachment for one in here if replace):
            held, is_new = taken(chosen, name, asked, options, terms, replace, wait is not False, longest_s, known, say)
        try:
            reservation = Reservation(chosen, held)
            if reload is not None:
                reservation.files.record.set_reload(reload)
            if grants:
                call(sharing.share(chosen, reservation.id, name, grants))
                for doubtful in filter(None, (doubt(chosen.name, to) for to in grants)):
                    say(doubtful)
        except BaseException:
            call(give_back((held, is_new)))
            raise
    return reservation


def attach(name: str | None = None, /, *, pool: str | None = None, notebook: str | None = None) -> Reservation:
    """Return a living reservation: by name, else the notebook's, else the only one. One that somebody shares with you
    is found by its name too, or, to tell it from others', by OWNER/NAME.

    Allocators of the pool that died are started again: they adopt their ranks. A node that does not answer is in the
    mesh's `status()`: its ranks are unreachable, the others can be used, `replace` and `release` work.

    Raises:
        ReservationNotFound: there is none, or several; the message lists them.
        AccessDenied: it is another's, who does not share it with you.
        NodeUnreachable: no node of it answers.
        NoSuchPool: `pool` is no name of a pool. PoolError: no pool is up.

    Example:
        >>> dev = monarch_nb.attach("dev")  # doctest: +SKIP
    """
    job = jobs.job_of(name) if name and pool is None else None
    chosen = pool_named(job.pool if job else pool)
    chosen.revive(_silent)
    return Reservation(chosen, find(chosen, name, notebook))


def _silent(_: str) -> None:
    pass


def _nothing(*_: object) -> None:
    pass
