"""`monarch-nb`: the local pool and what is held, from a terminal. Every command can be repeated."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from monarch_nb.cli import holding as holding_commands
from monarch_nb.cli import looking
from monarch_nb.cli import manifest as manifest_command
from monarch_nb.cli import run as run_command
from monarch_nb.cli.declared import about, add_declared, part_of
from monarch_nb.cli.pools import pool as pool_command
from monarch_nb.cli.saying import print_json, print_table, say, tell
from monarch_nb.client.advice import here, read_in_terminal
from monarch_nb.client.scripts.torchrun_flags import ABOUT_UNKNOWN
from monarch_nb.config import DEFAULT_POOL, LOG_LINES, PROTOCOL, VERSION, default_pool, patience
from monarch_nb.errors import (
    MonarchNbError,
    PoolError,
    ReservationExpired,
    ReservationNotFound,
    ReservationReleased,
    UsageError,
)
from monarch_nb.ground.printing import discard, make_streams_safe
from monarch_nb.notebook.syntax import declarations, flags, holding
from monarch_nb.notebook.syntax.command_line import Command
from monarch_nb.notebook.syntax.meant import ANSWERS, COMMANDS, as_here, flags_near, suggestion
from monarch_nb.times import duration, seconds_of

if TYPE_CHECKING:
    from monarch_nb.client.logs.records import LogRecord
    from monarch_nb.client.pools.infos import ReservationInfo
    from monarch_nb.client.reservations.sharing import Grant
    from monarch_nb.provision import Node

_EXAMPLES = """\
examples:
  monarch-nb up --nodes 2 --procs 4     a pool of this machine: 2 nodes with 4 CPU ranks each
  monarch-nb status                     its nodes, the reservations, and their owners
  monarch-nb reserve dev --procs 4      hold 4 ranks of a node, which stay until you release them
  monarch-nb run dev train.py           run a script, as torchrun would
  monarch-nb logs dev -t 0 -n 20        the last 20 lines of rank 0
  monarch-nb release dev                end the ranks of a reservation
  monarch-nb down                       end the pool
  monarch-nb pool init lab              make a pool of other machines
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Room for the longest command, whose indentation argparse forgets to count."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)
        self._action_max_length = len("    allocator")


class _Parser(argparse.ArgumentParser):
    """A parser that reads words of other tools, and suggests the nearest command or flag; `about_unknown` is said of a
    flag like no other."""

    about_unknown = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which reads what stands after a subcommand with this method of the subcommand's parser."""
        flags = {each: action for action in self._actions for each in action.option_strings}
        takes = {each: action.nargs not in (0, "?") for each, action in flags.items()}
        takes |= {str(action.metavar): False for action in self._actions if not action.option_strings}
        words, notes = as_here(sys.argv[1:] if args is None else args, takes)
        for note in notes:
            print(f"monarch-nb: {note}", file=sys.stderr)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        if match := re.match(r"argument COMMAND: invalid choice: '(.*?)'", message):
            message = f"no command {match[1]!r}{self._instead_of(match[1])}"
        elif match := re.match(r"unrecognized arguments: (-\S+)", message):
            flags = {tuple(each.option_strings): each.help != argparse.SUPPRESS for each in self._actions}
            near = flags_near(match[1].partition("=")[0], flags, f"{self.prog} --help")
            about = "" if near.startswith(":") else self.about_unknown
            message = f"unknown flag {match[1]}{near}{about}"
        super().error(message)

    def commands(self) -> list[str]:
        """Return its subcommands."""
        return [name for action in self._actions for name in action.choices or ()]

    def _instead_of(self, word: str) -> str:
        """Return what to say of a command that there is not."""
        in_notebooks = {declared.name for declared in declarations.MESH.commands}
        if word in ANSWERS:
            return f": {ANSWERS[word]}"
        if (meant := COMMANDS.get(word, word)) in in_notebooks:
            return f": in a notebook it is %mesh {meant}"
        return suggestion(word, self.commands()) or f"; there are {', '.join(self.commands())}"


def make_parser() -> _Parser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        "monarch-nb",
        description="The local pool and your reservations, from a terminal. You can repeat every command.",
        epilog=_EXAMPLES,
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=_version_line())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, *examples: str) -> _Parser:
        added: _Parser = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog="\n".join(["examples:", *(f"  monarch-nb {example}" for example in examples)]) if examples else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        added.set_defaults(handler=run, parser=added)
        if name not in ("pool", "manifest", "allocator", "version"):
            said = "all" if name == "list" else default_pool()
            added.add_argument("--pool", default=None, help=f"name of the pool (default: {said})")
        return added

    def shared(run: Callable[[argparse.Namespace], int], declared: Command, **how: Any) -> _Parser:
        """Add a command that is a subcommand of `%mesh`, too."""
        added = command(declared.name, run, *about(declared))
        add_declared(added, declared, **how)
        return added

    up = command("up", _up, "start the local pool", "up --nodes 2 --procs 4", "up --nodes 4")
    up.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: those of the pool, else 1)")
    up.add_argument("--procs", type=int, metavar="N", help="CPU ranks for each node (default: one per core)")
    up.add_argument("--isolate", action="store_true", help="make nodes that share no files, as on separate machines")
    up.add_argument("--gpus", choices=["all", "none"], help="whether node0 offers this machine's GPUs (default: all)")

    kept = "how much output of ranks each node keeps, as in 20GB (the default, at most); 0: all"
    up.add_argument("--log-limit", metavar="SIZE", help=kept)

    status = command(
        "status", _status, "show the nodes and the reservations", "status", "status --json | jq .[].reservations"
    )
    status.add_argument("--json", action="store_true", help="print JSON, for programs")

    held = command("list", _list, "show all reservations, one line each", "list", "list --json | jq .[].name")
    held.add_argument("--json", action="store_true", help="print JSON, for programs")

    run_script = command("run", run_command.run, run_command.SUMMARY, *run_command.EXAMPLES)
    run_command.add_arguments(run_script)
    run_script.about_unknown = ABOUT_UNKNOWN

    held = shared(holding_commands.reserve, holding.RESERVE, without=("--pool", *holding_commands.ONLY_IN_NOTEBOOKS))
    held.usage = f"monarch-nb reserve {holding.RESERVE.usage} [options] [-- ...]"
    held.epilog = f"-- ...: {holding.RESERVE.passes_on}\n\n{held.epilog}"

    logs = shared(_logs, declarations.LOGS)
    logs.add_argument("--raw", action="store_true", help="show every rank's lines, also equal ones")

    looking.add_plot(command("plot", looking.plot, looking.PLOT_SUMMARY, *looking.PLOT_EXAMPLES))
    shared(looking.top, flags.TOP)
    shared(holding_commands.stacks, declarations.STACKS)
    shared(looking.debug, declarations.DEBUG, without=("--on-breakpoint",))
    looking.add_doctor(command("doctor", looking.doctor, *looking.DOCTOR))
    shared(holding_commands.interrupt, declarations.INTERRUPT)
    shared(holding_commands.restart, declarations.RESTART)
    shared(holding_commands.release, holding.RELEASE, one_of=("NAME", "--all"))
    shared(holding_commands.replace, holding.REPLACE)
    shared(holding_commands.grow, holding.GROW, required="--nodes")
    shared(holding_commands.shrink, holding.SHRINK)
    shared(holding_commands.stop, holding.STOP)

    extend = command("extend", _extend, "hold a reservation for longer: add to its time limit", "extend dev 2h")
    extend.add_argument("name", nargs="?", metavar="NAME", help="the reservation (default: the only one you hold)")
    extend.add_argument(
        "time", nargs="?", metavar="TIME", help="how much longer: 30m, 2h, 1h30m; without it, say what is left"
    )

    shared(_share, holding.SHARE, one_of=("--read", "--run", "--end"))

    down = command("down", _down, "end the local pool and remove its files", "down", "down --force")
    down.add_argument("--force", action="store_true", help="end it even if reservations are held")

    pool_command.add_commands(command("pool", pool_command.run, pool_command.SUMMARY))

    manifest = command("manifest", manifest_command.run, manifest_command.SUMMARY, *manifest_command.EXAMPLES)
    manifest_command.add_arguments(manifest)

    command("allocator", _allocator, "run one node in the foreground")
    command("version", _version, "print the version")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for errors, 2 for wrong usage, 130 for Ctrl-C."""
    make_streams_safe()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["allocator"]:
        from monarch_nb.allocator.__main__ import main as allocator_main
        from monarch_nb.provision.daemons import daemon_environment

        for name in os.environ.keys() - daemon_environment().keys():
            del os.environ[name]  # it outlives this shell's notebook and job
        return allocator_main(words[1:])
    parser = make_parser()
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if COMMANDS.get(words[0]) in parser.commands():
        words[0] = COMMANDS[words[0]]
    end = words.index("--") if words[:1] == ["reserve"] and "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:end])
    if "numbers" in options and not any(word.startswith("-") for word in unknown):
        options.numbers, unknown = unknown, []  # behind flags argparse takes no more of them
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.words, options.passed_on = words if "pool" in options else [], words[end + 1 :]
    with read_in_terminal(options.words):
        return _handled(options)


def _handled(options: argparse.Namespace) -> int:
    try:
        _find_pool(options)
        if options.words and options.handler not in (_up, _down, holding_commands.release):
            _heal(options.pool or default_pool())
        status: int = options.handler(options)
        sys.stdout.flush()
    except UsageError as error:
        options.parser.error(here(str(error)))
    except MonarchNbError as error:
        print(f"monarch-nb: {here(str(error))}", file=sys.stderr)
        return 1
    except FileNotFoundError:
        if os.stat(".").st_nlink:  # none when it has been removed
            raise
        print("monarch-nb: the directory of this terminal has been removed: cd to another one", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        said = here(str(interrupt))
        print(f"\nmonarch-nb: {': '.join(filter(None, ['interrupted', said]))}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        discard(sys.stdout)  # whoever read our output (head, less) has enough
        return 0
    return status


def _find_pool(options: argparse.Namespace) -> None:
    """Choose the pool when none is named: that in which the reservation is which the command names."""
    options.is_pool_named = bool(getattr(options, "pool", None))
    if "pool" not in options or options.pool or options.handler in (_list, _status, run_command.run, looking.plot):
        return
    options.pool = default_pool()
    if name := getattr(options, "name", None):
        from monarch_nb.client.reservations.lists import pool_of

        options.pool = pool_of(name, options.pool)


def _heal(pool: str) -> None:
    """Start allocators of a local pool again that died: a command is about to need them."""
    from monarch_nb.provision import provisioner_of

    provisioner_of(pool).heal(pool=pool, progress=say)


def _up(options: argparse.Namespace) -> int:
    from monarch_nb.provision import provisioner_of

    nodes = provisioner_of(options.pool).up(
        options.nodes,
        options.procs,
        options.gpus,
        isolate=options.isolate,
        log_limit=options.log_limit,
        pool=options.pool,
        progress=say,
    )
    print(f"the pool {options.pool!r} is up: {', '.join(node.node_id for node in nodes)}")
    return 0


def _down(options: argparse.Namespace) -> int:
    from monarch_nb.provision import provisioner_of

    count = provisioner_of(options.pool).down(options.force, pool=options.pool, progress=say)
    print(f"the pool {options.pool!r} is down" if count else f"no pool {options.pool!r} is up")
    return 0


def _status(options: argparse.Namespace) -> int:
    """Show the pool that is meant; when none is named and there is none of the default name, all that there are.
    Programs are always told of all, unless one is named."""
    from monarch_nb.provision.known import known_pools

    chosen = options.pool or default_pool()
    pools = [chosen] if options.pool else known_pools() or [chosen]
    if chosen in pools and not options.json:
        return _status_of(chosen)
    status, told = 0, []
    for number, pool in enumerate(pools):
        try:
            if options.json:
                told.append(_told_of(pool))
            else:
                print(f"{chr(10) if number else ''}pool {pool}")
                status |= _status_of(pool, are_others_shown=True)
        except MonarchNbError as error:
            if options.pool:
                raise
            say(f"monarch-nb: {error}")
            status = 1
    if options.json:
        print_json(told)
    return status


def _told_of(pool: str) -> dict[str, Any]:
    """Return what `status --json` tells of a pool."""
    from monarch_nb import list_reservations

    described = _describe_all(pool)
    answers = any(node["hostname"] for node in described)
    held = [asdict(reservation) for reservation in list_reservations(pool, memory=True)] if answers else []
    return {"pool": pool, "nodes": described, "reservations": held}


def _describe_all(pool: str) -> list[dict[str, Any]]:
    """Return what `_describe` tells of the nodes of a pool, each once.

    Raises:
        PoolError: there is no such pool.
    """
    from monarch_nb.provision import provisioner_of

    nodes = provisioner_of(pool).nodes(pool=pool)
    _check_named_pool(pool)
    with ThreadPoolExecutor(max_workers=16) as threads:
        return [*dict(threads.map(_describe, nodes)).values()]


def _status_of(pool: str, *, are_others_shown: bool = False) -> int:
    from monarch_nb import list_reservations
    from monarch_nb.client.pools.answering import warning as namesakes
    from monarch_nb.client.pools.others import no_nodes, other_pools
    from monarch_nb.provision.jobs import trouble

    described = _describe_all(pool)
    answers = any(node["hostname"] for node in described)
    reservations = list_reservations(pool) if answers else []
    if not described:
        tell(no_nodes(pool))
        return 0
    rows = [
        (node["node"], node["state"], node["pid"], _used(node["procs_free"], node["procs"]), _gpus(node))
        for node in described
    ]
    print_table(("node", "state", "pid", "procs used", "GPUs used"), rows)
    alike = namesakes((node["node"], node["address"]) for node in described if node["hostname"])
    became = "" if all(node["hostname"] for node in described) else trouble(pool)
    for note in [*_gpu_notes(described), *filter(None, [alike, became])]:
        tell(note)
    if not answers:
        return 1
    print()
    free = max((node["procs_free"] or 0 for node in described), default=0)
    _print_reservations(reservations, pool, str(min(free, 4)) if free else "N")
    if not are_others_shown and (others := other_pools(pool)):
        tell(f"\n{others}")
    return 0


def _describe(node: Node) -> tuple[str, dict[str, Any]]:
    """Return what tells a node from others, under whatever address, and what `status --json` tells of it."""
    from monarch_nb.allocator.state.lease import why_not_free
    from monarch_nb.provision.daemons import describe

    told: dict[str, Any] = {"node": node.node_id, "address": node.address, "pid": node.pid or None, "state": "serves"}
    told |= dict.fromkeys(("hostname", "procs", "procs_free", "gpus", "gpus_free", "gpus_held"))
    if not node.alive:
        return node.address, told | {"state": "died (monarch-nb up starts it again)"}
    try:
        reply = describe(node.address, timeout_s=patience(5.0), identity=node.identity)
    except MonarchNbError as error:
        return node.address, told | {"state": str(error).removeprefix(f"{node.address} ")}
    if not reply.template_ready:
        told["state"] = "warming up"
    elif reply.template_error:
        told["state"] = f"can not start ranks: {reply.template_error.splitlines()[-1]}"
    gpus = [
        {"index": gpu.index, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "not_free": why_not_free(gpu)}
        for gpu in reply.gpus
    ]
    facts = {"node": reply.node_id, "hostname": reply.hostname, "procs": reply.procs, "procs_free": reply.procs_free}
    held = sum(holder.gpus for holder in reply.holders)
    return reply.token, told | facts | {"gpus": gpus, "gpus_free": reply.gpus_free, "gpus_held": held}


def _list(options: argparse.Namespace) -> int:
    from monarch_nb import list_everywhere
    from monarch_nb.client.reservations.lists import list_one

    _check_named_pool(options.pool or default_pool())
    held = list_one(options.pool, memory=options.json) if options.pool else list_everywhere(memory=options.json)
    if options.json:
        print_json([asdict(reservation) for reservation in held.reservations])
    else:
        with_pool = not options.pool and any(pool != default_pool() for pool in held.pools)
        _print_reservations(held.reservations, options.pool or default_pool(), with_pool=with_pool)
        for line in held.besides:
            tell(line)
    for note in held.notes:
        say(f"monarch-nb: {note}")
    return 1 if held.notes else 0


def _check_named_pool(pool: str) -> None:
    """No pool at all is nothing to show; one that somebody names is meant to be there."""
    from monarch_nb.client.pools.others import no_nodes
    from monarch_nb.provision import provisioner_of

    if pool != DEFAULT_POOL and not provisioner_of(pool).nodes(pool=pool):
        raise PoolError(no_nodes(pool))


def _logs(options: argparse.Namespace) -> int:
    from monarch_nb import attach
    from monarch_nb.client.logs.records import past_log
    from monarch_nb.notebook.output.logs import ended_line, nothing_kept, nothing_line, past_lines, shown_logs

    try:
        reservation = attach(options.name, pool=options.pool)
    except ReservationNotFound as error:
        past = past_log(options.name, options.pool, options.mesh, options.targets) if options.name else None
        if past is None and isinstance(error, ReservationExpired | ReservationReleased):
            say(nothing_kept(error))
            return 0
        if past is None:
            raise
        if options.raw:
            lines = LOG_LINES if options.lines is None else options.lines
            shown = _raw_lines([past.records(lines or None, options.run)])
        else:
            print(ended_line(past))
            shown = past_lines(past, options.lines, options.run, by=options.fold)
        for line in shown:
            print(line)
        return 0
    mesh = part_of(reservation, options.mesh, options.targets)
    if options.raw:
        lines = LOG_LINES if options.lines is None else options.lines
        shown = _raw_lines(mesh.log_batches(lines=lines or None, run=options.run, follow=options.follow))
    else:
        shown = shown_logs(mesh, options.lines, options.run, follow=options.follow, by=options.fold)
    line = ""
    for line in shown:
        print(line, flush=options.follow)
    if not line:
        say(nothing_line(mesh, options.run))
    return 0


def _raw_lines(batches: Iterable[Iterable[LogRecord]]) -> Iterator[str]:
    parts: list[LogRecord] = []  # very long lines come in pieces
    for record in (record for batch in batches for record in batch):
        if parts and (parts[0].rank, parts[0].stream) != (record.rank, record.stream):
            yield _raw_line(parts)
            parts = []
        parts.append(record)
        if record.text.endswith("\n"):
            yield _raw_line(parts)
            parts = []
    if parts:
        yield _raw_line(parts)


def _raw_line(parts: Sequence[LogRecord]) -> str:
    return f"[{parts[0].rank}] {''.join(part.text for part in parts).removesuffix(chr(10))}"


def _extend(options: argparse.Namespace) -> int:
    from monarch_nb import attach, list_reservations

    by_s = seconds_of(options.time, "TIME") if options.time else 0.0
    if options.name and not by_s:
        with contextlib.suppress(UsageError):  # then it is a name
            by_s, options.name = seconds_of(options.name, "TIME"), None
    reservation = attach(options.name, pool=options.pool)
    name = reservation.name
    if by_s:
        print(f"{name}: {duration(by_s)} more, {duration(reservation.extend(by_s))} left")
        return 0
    (info,) = (info for info in list_reservations(options.pool) if info.reservation_id == reservation.id)
    if info.time_left_s is None:
        print(f"{name} has no time limit: it is held until it is released")
    else:
        print(f"{name}: {info.left} left; monarch-nb extend {name} 2h adds two hours")
    return 0


def _share(options: argparse.Namespace) -> int:
    from monarch_nb import attach
    from monarch_nb.client.reservations.sharing import granted_line

    reservation = attach(options.name, pool=options.pool)
    if not options.to:
        if options.read or options.run or options.end:
            raise UsageError("name the user: --to NAME, as in the pool's certificates")
        shares = [f"{name} ({right})" for name, right in reservation.shares.items()]
        print(f"{reservation.name}: shared with {', '.join(shares) or 'nobody'}")
    elif options.end:
        reservation.unshare(options.to)
        print(f"{reservation.name}: {options.to} may not use it any more")
    else:
        grant: Grant = "run" if options.run else "read"
        doubtful = reservation.share(options.to, grant)
        tell(granted_line(reservation.owner, reservation.name, reservation.pool, options.to, grant))
        if doubtful:
            say(doubtful)
    return 0


def _allocator(options: argparse.Namespace) -> int:
    raise AssertionError("main() hands this command to monarch_nb.allocator")


def _version(options: argparse.Namespace) -> int:
    print(_version_line())
    return 0


def _version_line() -> str:
    return f"monarch-nb {VERSION} (protocol {PROTOCOL})"


def _print_reservations(
    reservations: Sequence[ReservationInfo], pool: str, procs: str = "N", *, with_pool: bool = False
) -> None:
    """Print what is held; if nothing is, how to reserve so many `procs` of a pool. `with_pool`: say where each is."""
    if not reservations:
        in_pool = "" if pool == default_pool() else f" --pool {pool}"
        print(f"nobody holds anything (monarch-nb reserve NAME --nodes 1 --procs {procs}{in_pool})")
        return
    rows = [
        (
            *(info.name, info.pool if with_pool else ""),
            *(info.holder, info.shape, info.mesh_names, info.alive_of_all, _running(info), info.left, info.notebook),
        )
        for info in reservations
    ]
    headers = "reservation", "pool", "held by", "shape", "meshes", "ranks alive", "running", "time left", "notebook"
    print_table(headers, rows)
    for info in reservations:
        for bare in info.nodes_without_main:
            tell(f"{info.name}: {bare}")


def _running(info: ReservationInfo) -> str:
    from monarch_nb.ground.rank_sets import format_ranks

    if not info.right:
        return ""  # that is not ours to see
    running = [rank.rank for rank in info.ranks if rank.run_id]
    return f"ranks {format_ranks(running)}" if running else "idle"


def _used(free: int | None, total: int | None) -> str:
    return "" if free is None or total is None else f"{total - free} of {total}"


def _gpus(node: dict[str, Any]) -> str:
    return f"{node['gpus_held']} of {len(node['gpus'])}" if node["gpus"] else ""


def _gpu_notes(nodes: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield why GPUs are not free although this pool does not hold them."""
    for node in nodes:
        if reasons := [gpu["not_free"] for gpu in node["gpus"] or () if gpu["not_free"]]:
            yield f"{node['node']}: {node['gpus_free']} of {len(node['gpus'])} GPUs free; {'; '.join(reasons)}"


if __name__ == "__main__":
    sys.exit(main())
