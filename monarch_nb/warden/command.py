"""The command line of the warden: read by it, and made by `monarch-nb allocator --as-users`."""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from monarch_nb.warden.groups import own_group

TOLD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""The signals by which it is told to end: blocked until it can."""
USERS = Path("/etc/monarch-nb/users.toml")
DIRECTORY = Path("/var/lib/monarch-nb-users")
GATEWAY_USER = "monarch-nb"
ROOM = (sys.executable, "-P", "-m", "monarch_nb.allocator", "--directory", "{directory}", "--ready-fd", "{ready}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; whoever writes it is root, and no request changes what it says."""
    parser = argparse.ArgumentParser("python -m monarch_nb.warden", description="Run rooms of accounts, as root.")
    parser.add_argument("--users", type=Path, default=USERS, help="whose name is which account (default: %(default)s)")
    parser.add_argument(
        "--directory", type=Path, default=DIRECTORY, help="root's; it has the rooms (default: %(default)s)"
    )
    parser.add_argument("--gateway-user", default=GATEWAY_USER, help="whom the gateway runs as (default: %(default)s)")
    parser.add_argument(
        "--cgroup", type=Path, default=own_group(), help="cgroup v2 for the rooms (default: %(default)s)"
    )
    parser.add_argument("--without-cgroups", dest="cgroup", action="store_const", const=None, help="limit nothing")
    parser.add_argument(
        "--gateway", required=True, help="its command, in which {descriptor} and {directory} are filled in"
    )
    parser.add_argument("--room", default=shlex.join(ROOM), help="so too, with {directory}, {ready} and {account}")
    return parser.parse_args(arguments)


def command(gateway: Sequence[str], room: Sequence[str] = ROOM, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts the warden, for `os.execv`."""
    said = ["--gateway", shlex.join(gateway), "--room", shlex.join(room), *options]
    return [sys.executable, "-P", "-m", "monarch_nb.warden", *said]
