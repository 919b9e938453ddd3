"""What the subcommands of `%mesh` accept that hold nodes, and what a line of `reserve` asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_nb.errors import UsageError
from monarch_nb.notebook.syntax.command_line import Command, Flag, Parsed, Words, read_environment

if TYPE_CHECKING:
    from monarch_nb.client.pools.infos import ReservationInfo
    from monarch_nb.client.reservations.lists import Holdings

NOBLOCK = Flag("--noblock", "go on at once; output keeps arriving here", short="-a")
_WAIT = Flag(
    "--wait",
    "wait in line for nodes that others hold, without limit or at most T: --wait 2h",
    value="T",
    kind="duration",
    optional=True,
)

RESERVE = Command(
    "reserve",
    "hold nodes and start ranks on them, or return to those already held",
    usage="[NAME] [--nodes N] --gpus N | --procs N",
    passes_on="flags for the engine of --on, as it takes them: -- --partition=a100",
    words=Words(
        "NAME", "its name (default: main); that of one that you hold returns to its live mesh", completes="reservation"
    ),
    flags=(
        Flag("--nodes", "how many nodes (default: 1)", value="N", kind="count"),
        Flag("--gpus", "GPUs per node, one rank each", value="N", kind="count"),
        Flag("--procs", "CPU ranks per node", value="N", kind="count"),
        Flag("--pool", "the pool of the nodes (default: the local one, which starts by itself)", value="POOL"),
        Flag(
            "--on",
            "the engine to ask for nodes instead: slurm, lsf, k8s, ray, ssh:lab, ...",
            value="ENGINE",
        ),
        Flag(
            "--python", "the ranks' python (default on the local pool: this kernel's)", value="PATH", completes="file"
        ),
        Flag(
            "--env",
            "set a variable in the ranks; NAME alone takes this kernel's value",
            value="NAME[=VALUE]",
            repeat=True,
        ),
        Flag("--preload", "a module to import before ranks are forked (default: torch)", value="MODULE", repeat=True),
        Flag(
            "--files",
            "directory whose files ranks use (default: the notebook's project), or none",
            value="DIR",
            completes="file",
        ),
        Flag(
            "--reload",
            "reload changed modules before each cell (auto), or not (off)",
            value="HOW",
            choices=("auto", "off"),
        ),
        Flag(
            "--shared",
            "storage that all nodes see; $MONARCH_NB_SHARED in ranks",
            value="DIR",
            completes="file",
        ),
        Flag("--time", "release it after this time, also while a cell runs: 90m, 8h, 2d", value="T", kind="duration"),
        Flag(
            "--idle",
            "release it when no cell ran and no kernel was attached for this time",
            value="T",
            kind="duration",
        ),
        Flag("--save", "save in DIR before the nodes are taken away (%mesh save DIR --at-end)", value="DIR"),
        Flag("--resume", "when the engine of --on takes the nodes back: ask again, load, rerun the cell"),
        Flag("--setup", "with --resume: first run the notebook's cells that have this tag", value="TAG", repeat=True),
        Flag("--force-busy", "also take GPUs on which other programs run, when no others are free"),
        Flag(
            "--share",
            "let somebody else see it, or run cells on it too (%mesh share)",
            value="WHO[:run]",
            repeat=True,
        ),
        _WAIT,
        Flag("--replace", "first release the reservation of that name"),
    ),
    notes="Ranks stay until they are released: they survive the kernel, the browser and the Jupyter server.\n"
    "In Python, `dev` (the name) is then the reservation and `mesh` its ranks, where these names are free.",
    examples=(
        ("%mesh reserve dev --nodes 2 --gpus 8", "16 ranks with a GPU each"),
        ("%mesh reserve dev --nodes 2 --procs 4", "8 CPU ranks"),
        ("%mesh reserve dev --gpus 8 --time 8h --idle 2h", "released in the evening, or when forgotten"),
        ("%mesh reserve dev --gpus 8 --on slurm -- -p a100", "a job of Slurm"),
        ("%mesh reserve dev --nodes 2 --gpus 8 --on ssh:lab", "two of the hosts that ssh knows as lab-..."),
        ("%mesh reserve dev --procs {n} --env WANDB_MODE=offline", "{x} and $x are this kernel's variables"),
    ),
)
ATTACH = Command(
    "attach",
    "use a held mesh, and follow what runs on it to the end",
    usage="[NAME] [--pool POOL] [--noblock] [--from-start | --run N]",
    words=Words("NAME", "a reservation (default: this notebook's)", completes="reservation"),
    flags=(
        NOBLOCK,
        Flag("--pool", "its pool (default: this notebook's, else the default pool)", value="POOL"),
        Flag("--from-start", "show all output, not only the missed part; the last cell's if none is missed"),
        Flag(
            "--run",
            "show all of run number N, even if it was shown before",
            value="N",
            kind="count",
            completes="run",
        ),
        Flag("--mesh", "only runs of this mesh; with --run: the mesh of the run", value="NAME", completes="mesh"),
    ),
    notes="Also shows finished runs of this notebook that nobody has seen, with results and errors.\n"
    "An interrupt of this cell interrupts the run.",
    examples=(
        ("%mesh attach", "after a kernel restart: the running cell goes on here"),
        ("%mesh attach dev --noblock", "from another notebook, in the background"),
    ),
)
DETACH = Command(
    "detach",
    "forget the mesh in this notebook; it stays held, with all its variables",
)
RELEASE = Command(
    "release",
    "end the ranks and give the nodes back",
    usage="[NAME | --all] [--save] [--pool POOL]",
    words=Words("NAME", "a reservation (default: this notebook's)", completes="reservation"),
    flags=(
        Flag("--all", "every reservation of yours in the pool"),
        Flag("--save", "first save where its ranks save by themselves (%mesh save DIR --at-end)"),
        Flag("--pool", "its pool (default: this notebook's, else the default pool)", value="POOL"),
    ),
    notes="Never asks. Variables on the ranks are lost.",
    examples=(("%mesh release dev", ""),),
)
_MORE_TIME = Flag(
    "--time", "the time to ask the engine for (default: the rest of the reservation's)", value="T", kind="duration"
)
REPLACE = Command(
    "replace",
    "put free nodes in the places of nodes that never come back",
    usage="[NAME] [--node N ...] [--wait [T]] [--time T]",
    words=Words("NAME", "a reservation of yours (default: this notebook's)", completes="reservation"),
    flags=(
        Flag(
            "--node",
            "a node by name or number, even one that answers (default: all that do not)",
            value="N",
            repeat=True,
            completes="node",
        ),
        _WAIT,
        _MORE_TIME,
    ),
    notes="The new ranks have the numbers, files and environment of the lost ranks, but not their variables.\n"
    "The other ranks keep theirs. Call dist.init_process_group() on all ranks again. The ranks of the\n"
    "old node end, once it answers, and the node is free.",
    examples=(
        ("%mesh replace", "after: host2 unreachable since 14:03:05"),
        ("%mesh replace --node host3", "host3 answers, but needs repair"),
    ),
)
GROW = Command(
    "grow",
    "hold more nodes",
    usage="[NAME] --nodes N [--mesh NAME] [--wait [T]] [--time T]",
    words=Words("NAME", "a reservation of yours (default: this notebook's)", completes="reservation"),
    flags=(
        Flag("--nodes", "the new number of nodes, or +2 for two more", value="N"),
        Flag("--mesh", "name of the new mesh over all nodes (default: grown)", value="NAME"),
        _WAIT,
        _MORE_TIME,
    ),
    notes="main stays as it is, on its nodes. The new mesh has as many ranks on each node, beside main's.\n"
    "Held nodes keep their numbers, and so do their ranks. The same again changes nothing.",
    examples=(
        ("%mesh grow dev --nodes 4", "4 nodes; %%mesh --mesh grown runs a cell on all of them"),
        ("%mesh grow --nodes +1 --mesh all --wait", "one more, as soon as one is free; the new mesh is called all"),
    ),
)
SHRINK = Command(
    "shrink",
    "give some of the nodes back",
    usage="[NAME] --nodes N | --node N ...",
    words=Words("NAME", "a reservation of yours (default: this notebook's)", completes="reservation"),
    flags=(
        Flag("--nodes", "how many nodes to keep: those that do not answer go first, then the last", value="N"),
        Flag("--node", "a node to give back, by name or number", value="N", repeat=True, completes="node"),
    ),
    notes="Only nodes on which no mesh has ranks are given back: %mesh stop ends a mesh beside main.\n"
    "main stays on its nodes. For fewer of them, %mesh reserve NAME --nodes N --replace begins anew.",
    examples=(
        ("%mesh shrink dev --nodes 2", "2 nodes are left"),
        ("%mesh shrink --node host3", "all but host3"),
    ),
)
STOP = Command(
    "stop",
    "end a mesh beside main; you keep its nodes",
    usage="NAME [--of RESERVATION]",
    words=Words("NAME", "a mesh that grow or spawn_procs has made", least=1, completes="mesh"),
    flags=(Flag("--of", "of this reservation (default: this notebook's)", value="R", completes="reservation"),),
    notes="Its variables are lost, and its runs end.",
    examples=(("%mesh stop grown", ""), ("%mesh stop grown --of dev", "also when this notebook holds another one")),
)
EXTEND = Command(
    "extend",
    "hold the mesh for longer: adds to its time limit",
    usage="[TIME]",
    words=Words("TIME", "how much longer: 30m, 2h, 1h30m (without: say what is left)"),
    examples=(("%mesh extend 2h", "released two hours later than it would have been"),),
)
SHARE = Command(
    "share",
    "let somebody else see the mesh, or run cells on it; without --to: list who may",
    usage="[NAME] [--to WHO [--read | --run | --end]]",
    words=Words("NAME", "a reservation of yours (default: this notebook's)", completes="reservation"),
    flags=(
        Flag("--to", "the name in that user's certificate", value="WHO"),
        Flag("--read", "see output, logs and the panel, and follow running cells (the default)"),
        Flag("--run", "run cells as well: they queue with yours, in order"),
        Flag("--end", "stop sharing: what they follow ends at once, and their queued cells are dropped"),
    ),
    notes="Whoever runs cells can do on the nodes what you can. Sharing ends with the reservation.",
    examples=(("%mesh share dev --to bob --run", "bob: %mesh attach dev"),),
)
LIST = Command("list", "every reservation, in all your pools")


def held_as(parsed: Parsed, name: str, pool: str | None, holdings: Callable[[], Holdings]) -> ReservationInfo | None:
    """Return the reservation of yours that a line returns to which says of no ranks how many; None when there is none.

    Args:
        pool: that it is in; None for any.
    """
    if any(map(parsed.values.get, ("gpus", "procs", "on"))):
        return None
    mine = [info for info in holdings().reservations if info.held_by_me and pool in (None, info.pool)]
    return next((info for info in mine if info.name == name), None)


def asked_for(parsed: Parsed, held: ReservationInfo | None = None) -> dict[str, Any]:
    """Return the arguments, all but who asks.

    Args:
        held: has the shape where the line has none.

    Raises:
        UsageError: it says no kind of ranks, or both.

    Example:
        >>> from monarch_nb.notebook.syntax.command_line import parse
        >>> from monarch_nb.notebook.syntax.holding import RESERVE
        >>> asked_for(parse(RESERVE, "dev --procs 4 --share bob"))["share"]
        {'bob': 'read'}
    """
    nodes, gpus, procs = parsed.count("nodes"), parsed.count("gpus"), parsed.count("procs")
    if held is not None:
        nodes, gpus, procs = nodes or held.nodes, held.gpus or None, held.procs or None
    if gpus is None and procs is None:
        raise UsageError("say how many ranks per node: --gpus N, or --procs N for CPU ranks")
    if gpus is not None and procs is not None:
        raise UsageError("say --gpus N or --procs N, not both: one mesh has one kind of rank")
    files = parsed.text("files")
    shares = (text.partition(":") for text in parsed.many("share"))
    return {
        "nodes": nodes or 1,
        "procs": procs,
        "gpus": gpus,
        "on": parsed.text("on"),
        "on_arguments": parsed.passed_on,
        "python": parsed.text("python"),
        "env": read_environment(parsed.many("env")) or None,
        "preload": parsed.many("preload") or None,
        "files": True if files is None else False if files == "none" else files,
        "reload": {"auto": True, "off": False}.get(parsed.text("reload") or ""),
        "shared": parsed.text("shared"),
        "time": parsed.seconds("time"),
        "idle": parsed.seconds("idle"),
        "force_busy": parsed.switch("force_busy"),
        "wait": parsed.seconds("wait") or parsed.switch("wait"),
        "replace": parsed.switch("replace"),
        "share": {to: right or "read" for to, _, right in shares} or None,
    }
