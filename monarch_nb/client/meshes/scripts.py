"""What a mesh does with programs: it runs them as torchrun would, or in its live ranks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.instruments.asked import Instruments, checked, packed
from monarch_nb.client.runs.results import policy
from monarch_nb.client.runs.run import Listener, Run
from monarch_nb.client.scripts.script import (
    Script,
    ScriptRun,
    as_in_copies,
    called,
    check_ranks,
    check_script,
    find_on_nodes,
    host_store,
)
from monarch_nb.config import OnBreakpoint
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.proto import run_pb2

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh


def run_script(
    mesh: Mesh,
    path: str,
    *arguments: str,
    module: bool = False,
    executable: bool = False,
    in_place: bool = False,
    beside: bool = False,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    sync: bool = True,
    instruments: Instruments | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a program on the ranks as torchrun would, and wait until all have finished. Ctrl-C interrupts it.

    Each rank of the program is a process of its own, forked for the program beside the live rank. It ends with the
    program, and so do its children. So nothing of a script reaches the next script or the live ranks, and a dead
    live rank does not matter. The program runs as `__main__` in torchrun's environment. The ranks of this mesh or
    part are its world.

    Args:
        path: a file, relative to the ranks' directory; with `module` a module's name, with `executable` a command.
        arguments: those of the program.
        module: run a module, like `python -m`. executable: run a command that is no Python file.
        in_place: run it in the live ranks, in the namespace of the cells; what it leaves stays.
        beside: do not wait for other scripts on the same ranks, and do not let them wait for this one.
        max_restarts: how often all ranks start again when a rank fails, with TORCHELASTIC_RESTART_COUNT set. They
            start again only while this process lives.
        environment: variables to add to the environment of the processes.
        timeout_s: stop waiting after this time; the program goes on.
        sync: first copy changed files to nodes that have copies of your files.
        instruments: what looks inside meanwhile, as of `run` (docs/inside.md).
        listener: called with the run's events on a background thread.

    Returns:
        The finished run. `run.values` has the exit status of each rank, which is 0. For a run that failed,
        `run.kept_values` has the exit statuses, with None for processes that were killed.

    Raises:
        UsageError: a node has no such script, or the arguments make no sense. Nothing has begun.
        RunFailed: a rank raised, exited with a code other than 0, or was killed. Then the other ranks were ended.
        NodeUnreachable, TimeoutError, FilesError: as for `run`.

    Example:
        >>> mesh.run_script("train.py", "--lr", "3e-4").values  # doctest: +SKIP
        [0, 0, 0, 0]
    """
    script = Script(
        *(path, arguments, module, executable, in_place, beside, max_restarts),
        environment=environment or {},
        instruments=packed(checked(instruments, mesh.ranks)),
    )
    return mesh.run_program(script, timeout_s=timeout_s, sync=sync, listener=listener)


def run_program(
    mesh: Mesh,
    script: Script,
    *,
    timeout_s: float | None = None,
    sync: bool = True,
    listener: Listener | None = None,
) -> Run:
    """Like `run_script`, with a Script in place of its path and arguments."""
    if sync:
        mesh._sync(alive=script.in_place)
    with at_waits():
        run = mesh.start_script(script, sync=False, listener=listener)
        is_done = run.join(timeout_s)
    return run.ended(is_done, timeout_s)


def submit_script(
    mesh: Mesh,
    path: str,
    *arguments: str,
    module: bool = False,
    executable: bool = False,
    in_place: bool = False,
    beside: bool = False,
    max_restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    sync: bool = True,
    instruments: Instruments | None = None,
    listener: Listener | None = None,
) -> Run:
    """Like `run_script`, but return at once. With `max_restarts` the run stands for all attempts.

    Example:
        >>> run = mesh.submit_script("train.py", "--lr", "3e-4", max_restarts=3)  # doctest: +SKIP
    """
    script = Script(
        *(path, arguments, module, executable, in_place, beside, max_restarts),
        environment=environment or {},
        instruments=packed(checked(instruments, mesh.ranks)),
    )
    return mesh.start_script(script, sync=sync, listener=listener)


def start_script(
    mesh: Mesh,
    script: Script,
    *,
    cell_number: int = 0,
    sync: bool = True,
    on_breakpoint: OnBreakpoint | None = None,
    listener: Listener | None = None,
) -> Run:
    """Like `submit_script`, with a Script in place of its path and arguments, and the number of the cell."""
    check_script(script)
    if not script.in_place:
        check_ranks(mesh)
    if sync:
        mesh._sync(alive=script.in_place)
    mesh._check_nodes()
    script = as_in_copies(script, mesh)
    if script.is_file:
        call(find_on_nodes(mesh, script))
    if script.in_place:
        cell = run_pb2.Cell(script=called(script), cell_number=cell_number)
        tree = mesh.reservation.files.tree()
        spec = run_pb2.RunSpec(cell=cell, tree=tree, on_breakpoint=policy(on_breakpoint))
        spec.instruments.update(script.instruments)
        return mesh._start(spec, script.title, "abort", listener)
    run_id = uuid.uuid4().hex
    store = call(host_store(mesh, run_id, only_port=script.shell))
    run = ScriptRun(mesh, run_id, script, mesh.core.add, on_error="abort", cell_number=cell_number, listener=listener)
    mesh.core.add(run)
    spec = run.spec(store)
    spec.on_breakpoint = policy(on_breakpoint)
    post(run.submit, spec)
    return run
