"""Connections to allocators that only their own hosts reach: through ssh, by TLS inside it.

A tunnel is a socket of this process, in a directory that only its user can enter; each connection to it becomes the
standard input and output of `ssh -W`. So nothing has to be kept up: what breaks is made anew by who connects again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from monarch_nb.config import MAX_SOCKET_PATH_BYTES, TUNNEL_SCHEME, cadence
from monarch_nb.errors import PoolError
from monarch_nb.ground.directories import OwnDirectory
from monarch_nb.provision.remote.command import end_ssh, ssh_command
from monarch_nb.trust.pools import SshHost

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = cadence(0.25), cadence(8.0)
"""Who connects to a host that can not be reached tries again at once; ssh is not started as often."""
LASTED_S = cadence(10.0)
"""A connection that has lasted so long has worked."""
_PREFIX = "monarch-nb-ssh-"


@dataclass(eq=False)
class _Tunnel:
    """A way to one address by one host; `processes` are those that carry its connections."""

    host: str
    to: str
    path: str
    listener: socket.socket
    pause_s: float = 0.0
    resumes_at: float = 0.0
    processes: set[subprocess.Popen[bytes]] = field(default_factory=set)


class Tunnels:
    """All tunnels of this process: one thread accepts connections, and one for each connection waits for its ssh."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tunnels: dict[tuple[str, str], _Tunnel] = {}
        self._closing: list[_Tunnel] = []
        self._pid = 0
        self._directory: OwnDirectory | None = None
        self._numbers = count(1)
        self._wake: socket.socket | None = None

    def address(self, host: str, to: str) -> str:
        """Return where an allocator can be reached by way of a host, as gRPC writes it.

        Args:
            to: `host:port`, as the host knows it.

        Raises:
            PoolError: ssh is not installed, or there is no place for a socket.
        """
        ssh_command()
        with self._lock:
            if self._pid != os.getpid():  # sockets of a process that was forked are its parent's
                self._begin()
            tunnel = self._tunnels.get((host, to))
            if tunnel is None:
                tunnel = self._tunnels[host, to] = self._listen(host, to)
                self._look()
            return f"{TUNNEL_SCHEME}{tunnel.path}"

    def close(self, host: str, to: str) -> None:
        """End a tunnel and all connections through it, if there is one."""
        with self._lock:
            if self._pid == os.getpid() and (tunnel := self._tunnels.pop((host, to), None)):
                self._closing.append(tunnel)
                self._look()

    def _begin(self) -> None:
        try:
            self._directory = OwnDirectory(_PREFIX, _parent())
        except OSError as error:
            raise PoolError(f"no place for the sockets of ssh's connections: {error}") from error
        self._pid, self._tunnels, self._closing = os.getpid(), {}, []
        selector = selectors.DefaultSelector()
        woken, self._wake = socket.socketpair()
        selector.register(woken, selectors.EVENT_READ, woken)
        threading.Thread(target=self._serve, args=(selector,), name="monarch_nb tunnels", daemon=True).start()

    def _look(self) -> None:
        """Have the thread that accepts look at the tunnels again."""
        assert self._wake is not None
        self._wake.send(b"x")

    def _listen(self, host: str, to: str) -> _Tunnel:
        assert self._directory is not None
        path = os.path.join(self._directory.path, str(next(self._numbers)))
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path)
            listener.listen(16)
        except OSError as error:
            listener.close()
            raise PoolError(f"no socket for connections by way of {host} at {path}: {error}") from error
        return _Tunnel(host, to, path, listener)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        while True:
            with self._lock:
                pauses = self._register(selector)
            for key, _ in selector.select(min(pauses, default=None)):
                if isinstance(key.data, _Tunnel):
                    self._accept(key.data)
                else:
                    key.data.recv(64)

    def _register(self, selector: selectors.BaseSelector) -> list[float]:
        """Listen on tunnels that do not pause, and end those that are closed; return how long the others will pause."""
        now_s, pauses = time.monotonic(), []
        for tunnel in self._closing:
            _end(tunnel, selector)
        self._closing.clear()
        for tunnel in self._tunnels.values():
            is_listening = tunnel.listener in selector.get_map()
            if tunnel.resumes_at > now_s:
                pauses.append(tunnel.resumes_at - now_s)
                if is_listening:
                    selector.unregister(tunnel.listener)
            elif not is_listening:
                selector.register(tunnel.listener, selectors.EVENT_READ, tunnel)
        return pauses

    def _accept(self, tunnel: _Tunnel) -> None:
        try:
            connection, _ = tunnel.listener.accept()
            with connection:
                process = subprocess.Popen(
                    [*ssh_command(), "-W", tunnel.to, tunnel.host],
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for what runs, not for what carries it
                )
        except (OSError, PoolError) as error:  # no descriptors, no processes, no ssh: for a while
            self._give_up(tunnel, error)
            return
        tunnel.processes.add(process)
        try:
            threading.Thread(target=self._reap, args=(tunnel, process), name="monarch_nb ssh", daemon=True).start()
        except RuntimeError as error:  # no threads
            end_ssh(process.pid, signal.SIGKILL)
            process.wait()
            tunnel.processes.discard(process)
            self._give_up(tunnel, error)

    def _give_up(self, tunnel: _Tunnel, error: Exception) -> None:
        _log.warning("no connection to %s by way of %s: %s", tunnel.to, tunnel.host, error)
        with self._lock:
            tunnel.resumes_at = time.monotonic() + LONGEST_PAUSE_S

    def _reap(self, tunnel: _Tunnel, process: subprocess.Popen[bytes]) -> None:
        """Wait until an ssh has ended; after one that has failed the next waits, ever longer."""
        began_s = time.monotonic()
        status = process.wait()
        with self._lock:
            tunnel.processes.discard(process)
            now_s = time.monotonic()
            if status == 0 or now_s - began_s > LASTED_S:
                tunnel.pause_s = 0.0
            else:
                tunnel.pause_s = min(max(FIRST_PAUSE_S, tunnel.pause_s * 2), LONGEST_PAUSE_S)
                tunnel.resumes_at = now_s + tunnel.pause_s
                self._look()


def _parent() -> str:
    """Return where the directory is made: where temporary files are, unless paths of sockets get too long there."""
    usual = tempfile.gettempdir()
    longest = os.path.join(usual, f"{_PREFIX}12345678", "123456")
    return usual if len(os.fsencode(longest)) <= MAX_SOCKET_PATH_BYTES else "/tmp"


def _end(tunnel: _Tunnel, selector: selectors.BaseSelector) -> None:
    if tunnel.listener in selector.get_map():
        selector.unregister(tunnel.listener)
    tunnel.listener.close()
    with contextlib.suppress(OSError):
        os.unlink(tunnel.path)
    for process in tunnel.processes:
        if process.poll() is None:
            end_ssh(process.pid, signal.SIGTERM)  # and _reap hears of its end


_tunnels = Tunnels()


def address_of(host: SshHost) -> str:
    """Return where this process reaches an allocator.

    Raises:
        PoolError: it takes ssh, which is not installed.
    """
    return _tunnels.address(host.destination, host.address) if host.tunnel else host.address


def forget(hosts: Iterable[SshHost]) -> None:
    """End this process's tunnels to hosts that have ended."""
    for host in hosts:
        _tunnels.close(host.destination, host.address)
