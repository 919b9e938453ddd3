"""Hosts that ssh reaches: a job is an allocator on each of them, which ends by itself.

A process of this machine prepares them, so that a kernel can go meanwhile: monarch_nb.provision.remote.preparing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Option
from monarch_nb.provision.launchers import Ask, EngineFlags, Job, Look, Offer
from monarch_nb.provision.remote.command import checked_hosts, hosts_of, known_targets, ssh_command, waited_for
from monarch_nb.provision.remote.preparing import (
    Preparation,
    allocator_flags,
    begin,
    end_on_all,
    end_preparing,
    is_preparing,
    look_at,
    owe,
    preparation_of,
    serve,
)
from monarch_nb.provision.remote.tunnels import forget
from monarch_nb.trust.pools import change_hosts, pools_directory, read_hosts


class SshLauncher:
    """Nodes on hosts that ssh reaches. A job is known by their names."""

    title = "ssh job on"
    targets = "POOL or HOST,HOST"

    def options(self) -> list[Option]:
        """Return what can be said of hosts."""
        ssh_command()
        names = known_targets()
        first = names[0] if names else ""
        known = f"a pool or hosts, as ssh knows them: {', '.join(names)}" if names else "as ssh knows them"
        return [
            Option("hosts", "Hosts", "text", first, known, flag="--hosts"),
            Option("interface", "Interface", "text", "", "between nodes; empty: by which ssh came", flag="--interface"),
            Option("tunnel", "All through ssh", "boolean", False, "also nodes reached otherwise", flag="--tunnel"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return which hosts it would be."""
        hosts, _ = _chosen(ask, _options(ask.arguments).hosts)
        return Offer(f"would be {', '.join(hosts)}")

    def ask(self, ask: Ask) -> str:
        """Start to prepare the hosts."""
        options = _options(ask.arguments)
        ssh_command()
        hosts, directory = _chosen(ask, options.hosts)
        flags = [*allocator_flags(ask), *(["--interface", options.interface] if options.interface else [])]
        preparation = Preparation(
            tuple(hosts),
            tuple(flags),
            ask.gpus,
            options.directory or directory,
            options.tunnel,
            os.uname().nodename,
        )
        begin("monarch_nb.provision.ssh", ask, preparation)
        return ", ".join(hosts)

    def look(self, job: Job) -> Look:
        """Return how far the hosts are; or, once they serve, which of them do no more."""
        preparation = preparation_of(job)
        if preparation is None:
            return Look("ended", f"nothing is known of the ssh job on {job.id} any more", "it has ended")
        if is_preparing(job.paths):
            said = "; ".join(f"{host} {text}" for host, text in preparation.said.items())
            return Look("waiting", said or f"connecting to {job.id}")
        if preparation.state == "failed":
            return Look("ended", preparation.error, preparation.error, logged=False)
        if preparation.state == "preparing":
            return Look("ended", f"what prepared {job.id} was killed", "it was killed")
        return look_at(job, read_hosts(job.paths).ssh)

    def extend(self, job: Job, by_s: float) -> None:
        """Refuse: there is no limit."""
        raise UsageError("hosts have no time limit")

    def end(self, job: Job) -> Sequence[str]:
        """End what prepares, and the allocators on all hosts; return those that are not reached."""
        preparation = preparation_of(job)
        if preparation is None:
            return ()
        end_preparing(job.paths, preparation)
        failures = waited_for(end_on_all(job, preparation))
        reached = len(preparation.hosts) - len(failures)
        refused = {host: error for host, error in failures.items() if not isinstance(error, NodeUnreachable)}
        if refused or (failures and not reached):
            said = "; ".join(f"{host}: {error}" for host, error in failures.items())
            raise PoolError(f"allocators could not be ended: {said}")
        owe((host, preparation.directory, job.pool) for host in failures)
        forget(read_hosts(job.paths).ssh)
        change_hosts(job.paths, lambda hosts: replace(hosts, ssh=()))
        return tuple(failures)


# ---- what is asked ----


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = EngineFlags("ssh")
    for flag in ("--hosts", "--interface", "--directory"):
        parser.add_argument(flag, default="")
    parser.add_argument("--tunnel", action=argparse.BooleanOptionalAction)
    options = parser.parse_args(list(arguments))
    check_directory(options.directory)
    return options


def check_directory(directory: str) -> None:
    """Make sure that a directory on hosts can be one.

    Raises:
        UsageError: it is relative.
    """
    if directory and not directory.startswith("/"):
        raise UsageError(f"--directory {directory}: write the whole path, as it is on the hosts")


def _chosen(ask: Ask, said: str) -> tuple[list[str], str]:
    """Return the hosts that a job gets, and our directory on them: those that no other job of this user has.

    Args:
        said: with --hosts, where nothing stands after `ssh:`.
    """
    target = ask.target or said
    if not target or (ask.target and said):
        there = ", ".join(known_targets()) or "none yet: monarch-nb pool init lab --ssh host1 host2"
        raise UsageError(f"say which hosts, as in --on ssh:lab; there are {there}")
    hosts, directory = hosts_of(target)
    taken = _taken()
    free = [host for host in hosts if host not in taken]
    if len(hosts) < ask.nodes:
        raise CapacityError(f"ssh:{target} is {counted(len(hosts), 'host')} ({', '.join(hosts)}), not {ask.nodes}")
    if len(free) < ask.nodes:
        held = ", ".join(f"{host} has {taken[host]}" for host in hosts if host in taken)
        raise CapacityError(f"of {counted(len(hosts), 'host')} of ssh:{target} {len(free)} are free: {held}")
    return checked_hosts(free[: ask.nodes]), directory


def _taken() -> dict[str, str]:
    """Return the hosts that jobs have, each with the job's pool."""
    taken = dict[str, str]()
    for note in pools_directory().glob("*/jobs/*/ssh.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, PoolError):
            taken |= dict.fromkeys(Preparation.load(TrustPaths(note.parent)).hosts, note.parents[2].name)
    return taken


def main(arguments: Sequence[str]) -> int:
    """Prepare the hosts of a job; return the exit status."""
    return serve(arguments, lambda _, preparation: preparation.hosts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
