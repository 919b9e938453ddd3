"""The template processes of a node: started when somebody needs them, adopted, and ended when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import subprocess
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from monarch_nb import config
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.links import TemplateLink
from monarch_nb.allocator.processes.processes import ProcessWatch
from monarch_nb.config import NodePaths, cadence, gap, patience
from monarch_nb.errors import MonarchNbError, PreloadError, SpawnError
from monarch_nb.ground.read_at_start import of_start, set_before_imports
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import state_pb2

_NO_MODULE = re.compile(r"No module named '?([\w.]+)")


def template_key(python: str, preload: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the short name of a template: one per python, preload list, and environment when it starts."""
    own = [f"{name}={value}" for name, value in sorted(environment.items())]
    return hashlib.sha256("\0".join([*config.python_identity(python), *preload, *own]).encode()).hexdigest()[:8]


def what_is_wrong(python: str, said: str) -> str:
    """Return what is wrong with a python whose template did not start, to be said behind that; empty when unknown.

    Args:
        said: the last that it has written.

    Example:
        >>> what_is_wrong("/bin/cat", "/bin/cat: invalid option -- 'm'")
        ': is it a Python?'
    """
    if missing := _NO_MODULE.findall(said):
        return f": it has no {missing[-1]}, which ranks need: {python} -m pip install monarch_nb=={config.VERSION}"
    return "" if "Traceback (most recent call last)" in said else ": is it a Python?"


EXIT_STATUS_WAIT_S = patience(1.0)
ADOPT_WAIT_S = cadence(3.0)
"""A restarted allocator serves after this time, also when a rank or template is too busy to say hello so soon."""
UNUSED_S = gap(600.0)
"""A template beside the pool's own ends when nobody has needed it for so long: it holds 0.1 to 0.4 GB."""

_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # else numpy starts threads, and a process with threads can not fork safely
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # the same for pyarrow
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() without initialising CUDA
}


class Templates:
    """One template for each Python, preload list, and what a process must have in its environment when it starts.

    Args:
        on_exit: called with (pid, wait status) when a child of a template has ended.
        save: called with a TemplateRecord to be remembered, or with (key, None) to be forgotten.

    Attributes:
        ready: set when the template that is kept warm is there, or has failed. error: why, else empty.
    """

    def __init__(
        self,
        paths: NodePaths,
        on_exit: Callable[[int, int], None],
        save: Callable[[str, state_pb2.TemplateRecord | None], None],
    ) -> None:
        self._paths, self._on_exit, self._save = paths, on_exit, save
        self._links: dict[str, asyncio.Task[TemplateLink]] = {}
        self._watches: dict[str, ProcessWatch] = {}
        self._kept: set[str] = set()
        self._ends: dict[str, asyncio.TimerHandle] = {}
        self._tasks = Tasks()
        self.ready, self.error = asyncio.Event(), ""

    def keep_warm(self, python: str, preload: Sequence[str]) -> None:
        """Start a template so that the first ranks come at once, and keep it although nobody needs it."""
        self._kept.add(_key(python, preload, {}))
        self._tasks.start(self._warm(python, preload))

    async def _warm(self, python: str, preload: Sequence[str]) -> None:
        try:
            await self.template(python, preload)
        except MonarchNbError as error:
            self.error = str(error)
        self.ready.set()

    async def template(
        self, python: str, preload: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> TemplateLink:
        """Return the warm template of these, started if need be.

        Args:
            environment: what it has besides the node's.

        Raises:
            PreloadError: a preload failed; the next call tries again.
            SpawnError: it did not start; the message ends with its log.
        """
        environment = environment or {}
        key = _key(python, preload, environment)
        self._end_when_unused(key)
        if not self._is_there(key):
            self._links[key] = asyncio.create_task(self._start(key, python, preload, environment))
        return await asyncio.shield(self._links[key])

    async def needs_own(
        self, python: str, preload: Sequence[str], wanted: Mapping[str, str], program: bytes = b""
    ) -> tuple[Sequence[str], dict[str, str], list[str]]:
        """Return the preload list and the environment of the template that processes with these variables need, and
        which of them a program sets too late for what is preloaded.

        Args:
            wanted: variables that were asked for.
            program: the text of the script that they are for: what it sets itself before it imports what is preloaded
                must not have been imported.
        """
        base = _base()
        noted: Collection[str] = ()
        if program or any(base.get(name) != value for name, value in wanted.items()):
            ready = (await self.template(python, preload)).ready.result()
            noted = frozenset(ready.reads)
        late = set_before_imports(program, preload, noted)
        return [] if late else preload, of_start(wanted, base, noted), late

    def has(self, python: str, preload: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether there is such a template, or will soon be."""
        return self._is_there(_key(python, preload, environment))

    def _is_there(self, key: str) -> bool:
        task = self._links.get(key)
        if task is None or not task.done():
            return task is not None
        return not task.cancelled() and task.exception() is None and task.result().alive

    async def _start(
        self, key: str, python: str, preload: Sequence[str], environment: Mapping[str, str]
    ) -> TemplateLink:
        path = self._paths.template_socket(key)
        path.unlink(missing_ok=True)
        arguments = [argument for module in preload for argument in ("--preload", module)]
        with socket.socket(socket.AF_UNIX) as listener, self._paths.template_log(key).open("ab") as log:
            listener.bind(str(path))
            listener.listen()
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 (a pidfd watches it, not asyncio)
                    [python, "-m", "monarch_nb.worker.template", "--listen-fd", str(listener.fileno()), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_base() | {**environment},
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                raise SpawnError(f"can not run {python}: {error}") from error
        watch = self._watch(key, process.pid)
        record = state_pb2.TemplateRecord(key=key, python=python, preload=preload)
        record.process.CopyFrom(processes.identify(process.pid))
        self._save(key, record)
        link = TemplateLink(path, self._on_exit)
        try:
            ready = asyncio.create_task(link.connect())
            ended = asyncio.create_task(watch.ended.wait())
            await asyncio.wait({ready, ended}, timeout=patience(300.0), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if not ready.done():
                await asyncio.wait({ready}, timeout=EXIT_STATUS_WAIT_S)
            if not ready.done():
                ready.cancel()
                watch.kill()  # nobody would know of it when the next one is started
                raise SpawnError(self._failure(key, python))
            ready.result()
        except PreloadError:
            raise
        except (SpawnError, OSError) as error:
            raise SpawnError(self._failure(key, python)) from error
        return link

    def _failure(self, key: str, python: str) -> str:
        log = self._paths.template_log(key)
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        last = "\n".join(text.splitlines()[-15:])
        return f"the template process of {python} did not start{what_is_wrong(python, last)}; the end of {log}:\n{last}"

    def _watch(self, key: str, pid: int) -> ProcessWatch:
        watch = self._watches[key] = ProcessWatch(pid)
        self._tasks.start(self._forget(key, watch))
        return watch

    async def _forget(self, key: str, watch: ProcessWatch) -> None:
        await watch.ended.wait()
        processes.reap(watch.pid)
        watch.close()
        if self._watches.get(key) is watch:
            del self._watches[key]
            self._save(key, None)

    async def adopt(self, record: state_pb2.TemplateRecord, known: Container[int]) -> None:
        """Connect to a template that outlived the allocator before us.

        Args:
            known: the pids of ranks and stores. An allocator that was killed when it had forked more of them, and had
                not noted them yet, has left them to nobody: they end.
        """
        if not processes.is_alive(record.process):
            self._save(record.key, None)
            return
        self._watch(record.key, record.process.pid)
        link = TemplateLink(self._paths.template_socket(record.key), self._on_exit)

        async def adopted() -> TemplateLink:
            ready = await link.connect()
            _end_unknown(pid for pid in ready.children if pid not in known)
            return link

        task = asyncio.create_task(adopted())
        self._links[record.key] = task
        self._end_when_unused(record.key)
        await asyncio.wait({task}, timeout=ADOPT_WAIT_S)

    def _end_when_unused(self, key: str) -> None:
        """Have it end when nobody asks for it any more. Its ranks go on, and the next one is started when need be."""
        if (end := self._ends.pop(key, None)) is not None:
            end.cancel()
        if key not in self._kept:
            self._ends[key] = asyncio.get_running_loop().call_later(UNUSED_S, self._end, key)

    def _end(self, key: str) -> None:
        self._ends.pop(key, None)
        if key not in self._kept and (watch := self._watches.get(key)) is not None:
            self._links.pop(key, None)  # whoever needs one from now on gets another, though its end is yet to be seen
            watch.kill()  # it holds nothing worth saving

    def forget_exit(self, pid: int) -> None:
        """It is stored how this child has ended."""
        for task in self._links.values():
            if task.done() and not task.cancelled() and not task.exception():
                task.result().forget([pid])

    async def all_end(self) -> None:
        """Wait until there is none: then nobody tells how ranks have ended."""
        for watch in list(self._watches.values()):
            await watch.ended.wait()

    async def end_all(self, within_s: float) -> None:
        """End them."""
        for watch in list(self._watches.values()):
            watch.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.ended.wait(), within_s)

    def close(self) -> None:
        """Let go of them; they go on."""
        for end in self._ends.values():
            end.cancel()
        for task in [*self._links.values(), *self._tasks]:
            task.cancel()


def _key(python: str, preload: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the name of a template. One that an allocator with another environment has left is another one."""
    return template_key(python, preload, of_start(_base() | {**environment}, {}, environment))


def _base() -> dict[str, str]:
    """Return the environment that every template of this node has."""
    return config.python_environment() | _ENVIRONMENT


def _end_unknown(pids: Iterable[int]) -> None:
    unknown = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            unknown.append((processes.identify(pid), ""))
    if unknown:
        processes.kill_trees(unknown)
