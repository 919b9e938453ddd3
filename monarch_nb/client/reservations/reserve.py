"""Reservations: taken once, found again by any later process, released by name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_nb import config
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.held import Asked
from monarch_nb.client.pools.pool import Progress, SpawnOptions, Terms, pool_named
from monarch_nb.client.reservations import sharing, taking
from monarch_nb.client.reservations.jobs import JobRequest, nodes_of_job
from monarch_nb.client.reservations.lists import find
from monarch_nb.client.reservations.members import all_end_here
from monarch_nb.client.reservations.reservation import Reservation, in_use
from monarch_nb.client.reservations.taking import give_back, taken
from monarch_nb.errors import UsageError
from monarch_nb.provision import jobs
from monarch_nb.times import Duration, seconds_of
from monarch_nb.trust.membership import doubt

DEFAULT_NAME = "main"


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
    """Reserve nodes and start a rank in every slot. The same call again returns the same live reservation.

    It starts the local pool when it is not up. A local pool that started by itself gets the missing nodes. A local pool
    that holds nothing takes the shape that you ask for.

    Args:
        name: of the reservation, by which you find it again; "main" by default.
        nodes: number of nodes.
        procs: CPU ranks per node. gpus: GPUs per node, one rank each. Give exactly one of the two.
        pool: name of an existing pool. Only the default local pool starts by itself.
        on: the engine to ask for nodes instead, such as "slurm" or "ssh:lab". The nodes come as a job, which
            `release()` ends. In an allocation that has enough, the nodes of the allocation are taken.
        on_arguments: flags for that engine, as in `["--partition=a100"]`.
        python: the path of the ranks' Python; by default this one.
        env: variables to add to the ranks' environment; None takes this process's value.
        preload: modules that are imported before ranks are forked; by default torch.
        directory: where ranks start; by default the notebook's directory, else the current one.
        files: the directory whose files ranks use. Ranks start there when the notebook is not in it. True means the
            project that contains `directory`, False means none. A home directory is never copied: nodes that do not
            see it then have no files.
        reload: whether ranks reload changed modules before each run; by default as the project says, else True. It also
            changes that of a reservation that you hold already, for all its kernels.
        shared: the path of storage that all nodes see, for data sets and checkpoints. Ranks have it as
            `$MONARCH_NB_SHARED`.
        time: how long to hold it: "8h", a timedelta or seconds; by default until you release it. When the time is up it
            is released, also while a cell runs. A reservation that you hold already keeps its limits.
        idle: how long to hold it while no cell runs and no client is attached; a time, as above.
        force_busy: also take GPUs on which other people's programs compute, when no others are free.
        wait: wait for what others hold: True, or a time as above, the longest. First come, first served; `progress`
            gets your place in the line.
        replace: release a reservation of the same name first.
        share: the rights of other people by name: "read" to see it, "run" to run cells too.
        notebook: path of the notebook that holds it. The notebook finds the reservation by it.
        progress: called with a line that says what is being done.

    Returns:
        The reservation, with all its ranks ready.

    Raises:
        UsageError: the arguments make no sense.
        NoSuchPool: no pool is called `pool`. The message lists the pools that exist.
        CapacityError: the pool has not that much, or not that much free.
        ReservationConflict: you hold the name with another shape, `python`, `env`, `preload`, `directory`, `files`,
            or `shared`. Arguments that you do not give can not conflict.
        SharedStorageError: a node does not see `shared`. Nothing is reserved.
        SpawnError: ranks could not start. PreloadError: a preload failed.
        NodeUnreachable: you hold it, and one of its nodes does not answer.

    Example:
        >>> dev = monarch_nb.reserve("dev", nodes=2, procs=4, idle="2h")  # doctest: +SKIP
        >>> dev.mesh.run("rank * 2").values  # doctest: +SKIP
        [0, 2, 4, 6, 8, 10, 12, 14]
    """
    name = taking.checked_name(name or DEFAULT_NAME)
    shape = taking.checked_shape(nodes, procs, gpus)
    time_s, idle_s = taking.limit_of(time, "time"), taking.limit_of(idle, "idle")
    say = progress or _silent
    grants = {to: sharing.checked_grant(right) for to, right in (share or {}).items()}
    longest_s = None if isinstance(wait, bool) else seconds_of(wait, "wait")
    start = taking.working_directory(directory, notebook)
    root, reloads = taking.project_of(start, files, reload)
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
        environment=taking.environment_option(env) | taking.shared_option(shared),
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
        known = {one.id: list(one._members.connections.values()) for one in here}
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
    """Find a live reservation again.

    It starts allocators of the pool that died again, and they adopt their ranks. `status()` of the mesh names nodes
    that do not answer: their ranks are unreachable, you can use the others, and `replace` and `release` work.

    Args:
        name: of the reservation, or OWNER/NAME of one that somebody shares with you. Without a name it is the
            notebook's reservation, else the only one.
        pool: name of its pool. notebook: path of the notebook that holds it.

    Raises:
        ReservationNotFound: there is none, or there are several. The message lists them.
        AccessDenied: somebody else owns it and does not share it with you.
        NodeUnreachable: none of its nodes answers.
        NoSuchPool: no pool is called `pool`. PoolError: no pool is up.

    Example:
        >>> dev = monarch_nb.attach("dev")  # doctest: +SKIP
        >>> dev.mesh.extent  # doctest: +SKIP
        {hosts: 2, procs: 4}
    """
    job = jobs.job_of(name) if name and pool is None else None
    chosen = pool_named(job.pool if job else pool)
    chosen.heal(_silent)
    return Reservation(chosen, find(chosen, name, notebook))


def _silent(_: str) -> None:
    pass
