"""The template process of a node: imports torch and IPython once, makes the shell once, and forks ranks from that.

    python -m monarch_nb.worker.template --socket PATH --preload torch --preload x ...

It has one thread, never imports grpc and never initialises CUDA: a forked child could use neither. It outlives the
allocator that started it, and keeps the exit statuses of its children until an allocator has stored them.
"""

import argparse
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from google.protobuf.message import DecodeError

from monarch_nb.config import patience
from monarch_nb.ground.frames import FrameError, FrameSplitter, encode_frame
from monarch_nb.ground.read_at_start import noting, read_at_import
from monarch_nb.ground.readable import readable
from monarch_nb.proto.worker_pb2 import (
    Forked,
    ForkRanks,
    ForkStore,
    FromTemplate,
    PreloadFailed,
    ProcessExit,
    RankSpec,
    TemplateReady,
    ToTemplate,
)
from monarch_nb.worker import become_rank, imports, rank, reload, steps
from monarch_nb.worker.groups import forming, store
from monarch_nb.worker.shell import patches
from monarch_nb.worker.shell.shell import RankShell, make_shell

_UVM_DEVICE = "/dev/nvidia-uvm"
"""Every CUDA context needs it. NVML, which only asks (as torch.cuda.is_available() does here), opens others."""


class Unfit(Exception):
    """The template can not be forked, or a module of its preload list can not be imported.

    Attributes:
        module: the module to blame; empty when unknown.
        text: what to show: the traceback of a failed import, else the message.
    """

    def __init__(self, message: str, module: str = "", text: str = "") -> None:
        super().__init__(message)
        self.module = module
        self.text = text or message


_ALSO = {"torch": ["torch._dynamo"]}
"""What a module imports when it is first used: the first optimizer would import 821 modules in every rank (1 s)."""


def import_modules(names: Iterable[str]) -> None:
    """Import each module; the first that fails, leaves a thread or initialises CUDA is refused.

    Raises:
        Unfit: names the module.
    """
    for module in [each for name in names for each in (name, *_ALSO.get(name, ()))]:
        try:
            importlib.import_module(module)
        except BaseException as error:  # SystemExit too: a module may call sys.exit()
            text = "".join(traceback.format_exception(type(error), error, _without_ours(error)))
            raise Unfit(f"{module} can not be imported: {error}", module, text) from error
        if threads := other_threads():
            reason = f"leaves a thread running ({', '.join(threads)}), and a process with threads can not be forked"
            raise Unfit(f"{module} can not be preloaded: importing it {reason}. Import it in a cell instead.", module)
        if cuda := cuda_traces():
            reason = f"initialises CUDA ({cuda}), and ranks forked after that could not use the GPU"
            raise Unfit(f"{module} can not be preloaded: importing it {reason}. Import it in a cell instead.", module)


def other_threads() -> list[str]:
    """Return the names of this process's threads other than the calling one, as the kernel knows them."""
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            try:
                names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
            except OSError:
                continue  # it has just ended
    return names


def cuda_traces() -> str:
    """Return a sign that this process has initialised CUDA; empty when there is none."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target == _UVM_DEVICE:
            return f"{target} is open"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return "torch.cuda.is_initialized()" if cuda is not None and cuda.is_initialized() else ""


def _without_ours(error: BaseException) -> TracebackType | None:
    """Return the error's traceback without our frame and importlib's."""
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    return trace


_SEND_TIMEOUT_S = patience(5.0)
_FAILURE_REPORT_TIMEOUT_S = patience(30.0)
_RECEIVE_BYTES = 1 << 16
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""Every Python process ignores them, and subprocess gives them back."""


class Template:
    """Serves one allocator at a time; a newer connection replaces the older.

    Whoever waits for the first ranks waits for no more than they need: what makes later forks faster is done in small
    steps once nothing has been asked for a while.
    """

    def __init__(self, listener: socket.socket, shell: RankShell, reads: Iterable[str]) -> None:
        self._listener, self._reads = listener, sorted(reads)
        self._shell = shell
        self._selector = selectors.DefaultSelector()
        self._connection: socket.socket | None = None
        self._splitter = FrameSplitter()
        self._children: set[int] = set()
        self._exits: dict[int, int] = {}
        self._stores: dict[int, tuple[int, int]] = {}  # pipe -> (request, pid)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._leaving = False

    def serve(self) -> None:
        """Answer requests until ExitTemplate."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler must exist for the wakeup descriptor to be written
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._reap)
        while not self._leaving:
            for key, _ in self._selector.select():
                key.data()

    # ---- connection ----

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            self._drop_connection()
            connection.settimeout(_SEND_TIMEOUT_S)
            self._connection, self._splitter = connection, FrameSplitter()
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(connection))
            exits = [ProcessExit(pid=pid, wait_status=status) for pid, status in self._exits.items()]
            version = getattr(sys.modules.get("torch"), "__version__", "")
            ready = TemplateReady(pid=os.getpid(), exits=exits, python=sys.executable, torch_version=version)
            ready.children.extend(self._children)
            ready.reads.extend(self._reads)
            self._send(FromTemplate(ready=ready))

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _receive(self, connection: socket.socket) -> None:
        if connection is not self._connection:
            return  # the end of the last one was noticed together with the next
        try:
            data = connection.recv(_RECEIVE_BYTES)
            messages = [ToTemplate.FromString(frame) for frame in self._splitter.feed(data)]
        except (OSError, FrameError, DecodeError):  # the allocator is gone, or it is none
            data, messages = b"", []
        if not data:
            self._drop_connection()
        for message in messages:
            self._handle(message)

    def _send(self, message: FromTemplate) -> None:
        if self._connection is not None:
            try:
                self._connection.sendall(encode_frame(message.SerializeToString()))
            except OSError:
                self._drop_connection()

    def _handle(self, message: ToTemplate) -> None:
        match message.WhichOneof("message"):
            case "fork_ranks":
                self._send(FromTemplate(forked=self._fork_ranks(message.fork_ranks)))
            case "fork_store":
                self._fork_store(message.fork_store)
            case "forget_exits":
                for pid in message.forget_exits.pids:
                    self._exits.pop(pid, None)
            case "exit":
                self._leaving = True

    # ---- forking ----

    def _fork_ranks(self, request: ForkRanks) -> Forked:
        forked = Forked(request=request.request)
        try:
            self._check_single_thread()
            for spec in request.ranks:
                forked.pids.append(self._fork_rank(spec))
        except (OSError, Unfit) as error:
            forked.error = str(error)
            self._end(forked.pids)  # a mesh is whole, or it is not
            del forked.pids[:]
        return forked

    def _end(self, pids: Iterable[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._children.discard(pid)

    def _fork_rank(self, spec: RankSpec) -> int:
        if not os.path.isdir(spec.directory):
            raise NotADirectoryError(f"rank {spec.rank}: no directory {spec.directory}")
        listener = listen(Path(spec.socket))
        try:
            pid = os.fork()
        except OSError:
            listener.close()
            raise
        if pid == 0:
            self._leave_template()
            rank.run_rank(spec, listener, self._shell)
        self._children.add(pid)
        listener.close()
        return pid

    def _fork_store(self, request: ForkStore) -> None:
        try:
            self._check_single_thread()
            port_read, port_write = os.pipe2(os.O_CLOEXEC)
            try:
                pid = os.fork()
            except OSError:
                os.close(port_read)
                os.close(port_write)
                raise
        except (OSError, Unfit) as error:
            self._send(FromTemplate(forked=Forked(request=request.request, error=str(error))))
            return
        if pid == 0:
            os.close(port_read)
            self._leave_template()
            _serve_store(request, port_write)
        os.close(port_write)
        self._children.add(pid)
        self._stores[port_read] = request.request, pid
        self._selector.register(port_read, selectors.EVENT_READ, lambda: self._report_store(port_read))

    def _report_store(self, pipe: int) -> None:
        request, pid = self._stores.pop(pipe)
        text = os.read(pipe, 100).decode()
        self._selector.unregister(pipe)
        os.close(pipe)
        error = "" if text else "the store process ended before it could listen; see the template's log"
        self._send(FromTemplate(forked=Forked(request=request, pids=[pid], store_port=int(text or 0), error=error)))

    def _check_single_thread(self) -> None:
        if threads := other_threads():
            raise Unfit(f"the template process has other threads ({', '.join(threads)}) and can not fork")

    def _leave_template(self) -> None:
        """In a forked child: give up everything of the template's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        for descriptor in (self._wake_read, self._wake_write, *self._stores):
            os.close(descriptor)

    # ---- children ----

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        for pid in list(self._children):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                self._children.discard(pid)
                continue
            if ended:
                self._children.discard(pid)
                self._exits[pid] = status
                self._send(FromTemplate(exit=ProcessExit(pid=pid, wait_status=status)))


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, in the place of a stale one."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(str(path))
    listener.listen(16)
    return listener


def main() -> None:
    """Import everything, then serve."""
    parser = argparse.ArgumentParser(prog="python -m monarch_nb.worker.template")
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE")
    arguments = parser.parse_args()
    gc.disable()  # what is imported stays: to look through it again and again takes a tenth of the time
    _hear_all_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = listen(arguments.socket) if arguments.socket else socket.socket(fileno=arguments.listen_fd)
    reload.install()
    become_rank.install()
    try:
        with noting() as reads:
            import_modules(arguments.preload)
        read_at_import.update(reads)
    except Unfit as error:
        _report_failure(listener, PreloadFailed(module=error.module, traceback=error.text))
        sys.exit(1)
    imports.learn(arguments.preload, reads)
    shell = make_shell()
    become_rank.hide_shell()
    patches.install()
    steps.lone_training.begin()
    forming.prepare()
    imports.learn_paths()
    _finalize_nothing_at_exit()
    gc.freeze()  # what exists now is never looked at by a rank's collector, so its pages stay shared
    gc.disable()  # also when a preload has enabled it
    Template(listener, shell, reads).serve()


def _hear_all_signals() -> None:
    """Give ranks the signals of a process that a login shell starts, whoever started the node: `nohup` ignores SIGHUP,
    a script's `&` ignores SIGINT and SIGQUIT, and a parent may block any. Processes inherit both, for ever. It is done
    here and not in the allocator: one that a person starts with `nohup` is to outlive the terminal.
    """
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _finalize_nothing_at_exit() -> None:
    """What is there now is the template's, not for a rank to finalise when it ends: torch would take every operator of
    its 130 libraries back (60 ms a rank), and a preload's temporary directory would be gone for all."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _report_failure(listener: socket.socket, failure: PreloadFailed) -> None:
    """Tell whoever connects in the next half minute."""
    sys.stderr.write(f"preload of {failure.module} failed\n{failure.traceback}\n")
    sys.stderr.flush()
    frame = encode_frame(FromTemplate(preload_failed=failure).SerializeToString())
    deadline = time.monotonic() + _FAILURE_REPORT_TIMEOUT_S
    told = False
    while not told and (left_s := deadline - time.monotonic()) > 0:
        if readable([listener], left_s):
            with suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(_SEND_TIMEOUT_S)
                connection.sendall(frame)
                told = True
                connection.recv(1)  # wait until the other side has read it and closes


def _serve_store(request: ForkStore, port_pipe: int) -> NoReturn:
    """In the store's process."""
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(request.environment)

        def report_port(port: int) -> None:
            os.write(port_pipe, str(port).encode())

        store.serve(request.host, report_port, request.port)
    except BaseException:  # noqa: BLE001 -- the template logs it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
