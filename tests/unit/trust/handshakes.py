"""Handshakes of TLS without sockets, as two hosts would have them."""

import ssl
from pathlib import Path

from monarch_nb.trust.identity import Identity


def shake_hands(directory: Path, client: Identity, node: Identity, target_name: str = "") -> str:
    """Have a client and a node agree; return the TLS version. Certificates are used as of now.

    Raises:
        ssl.SSLError: one did not believe the other.
    """
    to_node, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = _context(ssl.PROTOCOL_TLS_CLIENT, client, directory / "client.pem")
    there = _context(ssl.PROTOCOL_TLS_SERVER, node, directory / "node.pem")
    there.verify_mode = ssl.CERT_REQUIRED
    calling = here.wrap_bio(to_client, to_node, server_hostname=target_name or client.target_name)
    called = there.wrap_bio(to_node, to_client, server_side=True)
    waiting = [calling, called]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return calling.version() or ""


def _context(protocol: int, identity: Identity, path: Path) -> ssl.SSLContext:
    identity.save(path)
    context = ssl.SSLContext(protocol)
    context.load_cert_chain(path)
    context.load_verify_locations(cadata=identity.authority.decode())
    return context
