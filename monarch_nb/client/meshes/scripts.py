"""What a mesh does with programs: it runs them as torchrun would, or in its live ranks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.instruments.asked import Instruments, packed
from monarch_nb.client.instruments.checking import checked
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.run import Listener, OnError, Run
from monarch_nb.client.runs.stops import policy
from monarch_nb.client.scripts.finding import as_in_copies, check_ranks, find_on_nodes
from monarch_nb.client.scripts.script import Script, check_script
from monarch_nb.client.scripts.script_run import ScriptRun, called, host_store
from monarch_nb.config import OnBreakpoint
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.proto import run_pb2


class _Mesh(HeldMesh, Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    @property
    def core(self) -> MeshCore: ...

    def pull(self, expression: str) -> list[Any]: ...

    def run_program(
        self, script: Script, *, timeout_s: float | None = None, sync: bool = True, listener: Listener | None = None
    ) -> Run: ...

    def start_script(
        self,
        script: Script,
        *,
        cell_number: int = 0,
        sync: bool = True,
        on_breakpoint: OnBreakpoint | None = None,
        listener: Listener | None = None,
    ) -> Run: ...

    def _sync(self, *, alive: bool = True) -> None: ...

    def _check_nodes(self) -> None: ...

    def _start(
        self, spec: run_pb2.RunSpec, title: str, on_error: OnError = "wait", listener: Listener | None = None
    ) -> Run: ...


class RunsScripts:
    """A part of `Mesh`: programs on its ranks."""

    def run_script(
        self: _Mesh,
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
            instruments=packed(checked(instruments, self)),
        )
        return self.run_program(script, timeout_s=timeout_s, sync=sync, listener=listener)

    def run_program(
        self: _Mesh,
        script: Script,
        *,
        timeout_s: float | None = None,
        sync: bool = True,
        listener: Listener | None = None,
    ) -> Run:
        """Like `run_script`, with a Script in place of its path and arguments."""
        if sync:
            self._sync(alive=script.in_place)
        with at_waits():
            run = self.start_script(script, sync=False, listener=listener)
            is_done = run.join(timeout_s)
        return run.ended(is_done, timeout_s)

    def submit_script(
        self: _Mesh,
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
            instruments=packed(checked(instruments, self)),
        )
        return self.start_script(script, sync=sync, listener=listener)

    def start_script(
        self: _Mesh,
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
            check_ranks(self)
        if sync:
            self._sync(alive=script.in_place)
        self._check_nodes()
        script = as_in_copies(script, self)
        if script.is_file:
            call(find_on_nodes(self, script))
        if script.in_place:
            cell = run_pb2.Cell(script=called(script), cell_number=cell_number)
            tree = self.reservation.files.tree()
            spec = run_pb2.RunSpec(cell=cell, tree=tree, on_breakpoint=policy(on_breakpoint))
            spec.instruments.update(script.instruments)
            return self._start(spec, script.title, "abort", listener)
        run_id = uuid.uuid4().hex
        store = call(host_store(self, run_id, only_port=script.shell))
        run = ScriptRun(
            self, run_id, script, self.core.add, on_error="abort", cell_number=cell_number, listener=listener
        )
        self.core.add(run)
        spec = run.spec(store)
        spec.on_breakpoint = policy(on_breakpoint)
        post(run.submit, spec)
        return run
