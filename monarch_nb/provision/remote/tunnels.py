"""Connections to allocators that only their own hosts reach: through ssh, by TLS inside it.

A tunnel is a socket of this process, on which it accepts connections from itself alone; each becomes the standard
input and output of `ssh -W`. So nothing has to be kept up: what breaks is made anew by who connects again, and nothing
is left of a process that is gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from monarch_nb.errors import PoolError
from monarch_nb.provision.remote.command import ssh_command
from monarch_nb.trust.pools import SshHost

_log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Who connects to a host that can not be reached tries again at once; ssh is not started as often."""
LASTED_S = 10.0
"""A connection that has lasted so long has worked."""
_CREDENTIALS = struct.Struct("3i")


@dataclass
class _Tunnel:
    """A way to one address by one host."""

    host: str
    to: str
    listener: socket.socket
    address: str
    pause_s: float = 0.0
    resumes_at: float = 0.0


@dataclass
class _Connection:
    """One connection through a tunnel; `pidfd` is readable when its ssh has ended."""

    tunnel: _Tunnel
    process: subprocess.Popen[bytes]
    pidfd: int
    began_s: float = field(default_factory=time.monotonic)


class Tunnels:
    """All tunnels of this process: one thread, which waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tunnels: dict[tuple[str, str], _Tunnel] = {}
        self._closing: list[_Tunnel] = []
        self._pid = 0
        self._selector: selectors.BaseSelector | None = None
        self._wake: socket.socket | None = None

    def address(self, host: str, to: str) -> str:
        """Return where an allocator can be reached by way of a host, as gRPC writes it.

        Args:
            to: `host:port`, as the host knows it.

        Raises:
            PoolError: ssh is not installed.
        """
        ssh_command()
        with self._lock:
            if self._pid != os.getpid():  # sockets of a process that was forked are its parent's
                self._begin()
            tunnel = self._tunnels.get((host, to))
            if tunnel is None:
                tunnel = self._tunnels[host, to] = _listen(host, to)
                assert self._wake is not None
                self._wake.send(b"x")
            return tunnel.address

    def close(self, host: str, to: str) -> None:
        """End a tunnel and all connections through it, if there is one."""
        with self._lock:
            if self._pid == os.getpid() and (tunnel := self._tunnels.pop((host, to), None)) and self._wake:
                self._closing.append(tunnel)
                self._wake.send(b"x")

    def _begin(self) -> None:
        self._pid, self._tunnels, self._closing = os.getpid(), {}, []
        self._selector = selectors.DefaultSelector()
        woken, self._wake = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ, woken)
        threading.Thread(target=self._serve, args=(self._selector,), name="monarch_nb tunnels", daemon=True).start()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        while True:
            pauses = self._register(selector)
            for key, _ in selector.select(min(pauses, default=None)):
                match key.data:
                    case _Tunnel() as tunnel:
                        try:
                            self._accept(tunnel, selector)
                        except (OSError, PoolError) as error:  # no descriptors, no processes, no ssh: for a while
                            _log.warning("no connection to %s by way of %s: %s", tunnel.to, tunnel.host, error)
                            tunnel.resumes_at = time.monotonic() + LONGEST_PAUSE_S
                    case _Connection() as connection:
                        _reap(connection, selector)
                    case woken:
                        woken.recv(64)

    def _register(self, selector: selectors.BaseSelector) -> list[float]:
        """Listen on tunnels that do not pause, and end those that are closed; return how long the others will pause."""
        now_s, pauses = time.monotonic(), []
        with self._lock:
            tunnels, closing = list(self._tunnels.values()), list(self._closing)
            self._closing.clear()
        for tunnel in closing:
            _end(tunnel, selector)
        for tunnel in tunnels:
            is_listening = tunnel.listener in selector.get_map()
            if tunnel.resumes_at > now_s:
                pauses.append(tunnel.resumes_at - now_s)
                if is_listening:
                    selector.unregister(tunnel.listener)
            elif not is_listening:
                selector.register(tunnel.listener, selectors.EVENT_READ, tunnel)
        return pauses

    def _accept(self, tunnel: _Tunnel, selector: selectors.BaseSelector) -> None:
        connection, _ = tunnel.listener.accept()
        with connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, *_ = _CREDENTIALS.unpack(credentials)
            if pid != os.getpid():
                return  # the name of the socket can be seen, and anybody can connect
            process = subprocess.Popen(
                [*ssh_command(), "-W", tunnel.to, tunnel.host],
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for what runs, not for what carries it
            )
        pidfd = os.pidfd_open(process.pid)
        selector.register(pidfd, selectors.EVENT_READ, _Connection(tunnel, process, pidfd))


def _listen(host: str, to: str) -> _Tunnel:
    name = f"ssh-{host}-{to}-{secrets.token_hex(4)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(16)
    return _Tunnel(host, to, listener, f"unix-abstract:{name}")


def _end(tunnel: _Tunnel, selector: selectors.BaseSelector) -> None:
    if tunnel.listener in selector.get_map():
        selector.unregister(tunnel.listener)
    tunnel.listener.close()
    for key in list(selector.get_map().values()):
        if isinstance(key.data, _Connection) and key.data.tunnel is tunnel:
            key.data.process.terminate()  # and _reap hears of its end


def _reap(connection: _Connection, selector: selectors.BaseSelector) -> None:
    """Take an ssh's end; after one that has failed the next waits, ever longer."""
    selector.unregister(connection.pidfd)
    os.close(connection.pidfd)
    status = connection.process.wait()
    tunnel, now_s = connection.tunnel, time.monotonic()
    if status == 0 or now_s - connection.began_s > LASTED_S:
        tunnel.pause_s = 0.0
    else:
        tunnel.pause_s = min(max(FIRST_PAUSE_S, tunnel.pause_s * 2), LONGEST_PAUSE_S)
        tunnel.resumes_at = now_s + tunnel.pause_s


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
