"""What `%mesh`, its other subcommands and `%%mesh` accept: declarations only."""

from __future__ import annotations

from dataclasses import replace

from monarch_nb.client.scripts.torchrun_flags import ABOUT_UNKNOWN, FLAGS
from monarch_nb.config import LOG_LINES
from monarch_nb.lines.templates import FEW_RANKS, FOLDS_BY
from monarch_nb.notebook.syntax.command_line import Command, CommandSet, Flag, Words
from monarch_nb.notebook.syntax.flags import ENVIRONMENT, INSTRUMENTS, MEMORY, TOP, WATCH
from monarch_nb.notebook.syntax.flags import MESH_NAME as _MESH
from monarch_nb.notebook.syntax.flags import TARGETS as _TARGETS
from monarch_nb.notebook.syntax.holding import (
    ATTACH,
    DETACH,
    EXTEND,
    GROW,
    LIST,
    NOBLOCK,
    RELEASE,
    REPLACE,
    RESERVE,
    SHARE,
    SHRINK,
    STOP,
)
from monarch_nb.worker.saving.asked import KEPT_SAVES


def _out(what: str) -> Flag:
    return Flag("--out", what, short="-o", value="NAME", completes="kernel_name")


def _timeout(what: str) -> Flag:
    return Flag("--timeout", f"raise TimeoutError after S seconds; the {what} goes on", value="S", kind="seconds")


ON_BREAKPOINT = ("stop", "go-on", "error")
_ON_BREAKPOINT = Flag(
    "--on-breakpoint",
    "at breakpoint(): stop and ask, go on, or fail (headless: go-on)",
    value="HOW",
    choices=ON_BREAKPOINT,
)
FOLD_FLAG = Flag(
    "--fold",
    "how the lines of one row may differ (%mesh help fold)",
    value="HOW",
    choices=FOLDS_BY,
)
SCALING = (
    Flag("--scale", "run on 1, then 2, then 4 ranks: time, throughput, efficiency", value="1,2,4"),
    Flag("--per", "with --scale: an amount that the cell prints or returns: tokens", value="NAME"),
)
_OURS_TOO = ("--max-restarts", "--module")
RUN = Command(
    "run",
    "run a script as torchrun does, but warm: in fresh processes that have torch imported",
    usage="[options] SCRIPT ARGUMENTS... | -m MODULE ARGUMENTS...",
    words=Words(
        "SCRIPT",
        "a file, by its path on the ranks; words after it are the script's",
        most=None,
        least=1,
        rest=True,
        completes="script",
    ),
    flags=(
        _TARGETS,
        _MESH,
        NOBLOCK,
        Flag("--in-place", "in the live ranks' own namespace, as %run -i; what is global in it stays", short="-i"),
        Flag("--beside", "do not wait for other scripts on these ranks"),
        ENVIRONMENT,
        *(Flag(each.name, each.help, each.short, each.value) for each in FLAGS if each.name in _OURS_TOO),
        _out("keep the exit codes, a list by rank; with --noblock, the Run"),
        _ON_BREAKPOINT,
        _timeout("script"),
        *INSTRUMENTS,
        WATCH,
        *(
            Flag(each.name, each.help, each.short, each.value, hidden=True)
            for each in FLAGS
            if each.name not in _OURS_TOO
        ),
    ),
    notes="Its processes have torchrun's environment, and a sys.argv and __main__ of their own. They end with\n"
    "the script.\n"
    "torchrun's --nnodes, --nproc-per-node and --standalone, and PET_ variables, are checked against\n"
    "the reservation; flags that mean nothing here are named: docs/scripts.md has a table.\n"
    "-t is --targets.",
    about_unknown=ABOUT_UNKNOWN,
    examples=(
        ("%mesh run train.py --lr 3e-4", "on all ranks"),
        ("%mesh run -t hosts=0 -m scripts.base_train -- --depth=4", "a module, on one node"),
        ("%mesh run -i train.py", "then cells have its globals, not main()'s variables"),
        ("%mesh run --env TORCH_LOGS=recompiles train.py", "as TORCH_LOGS=recompiles torchrun … has it"),
        ("%mesh run --max-restarts 3 train.py --resume", "starts again when a rank dies"),
        ("%mesh run --profile train.py", "then a table of where its time went, and a trace"),
    ),
)
SH = Command(
    "sh",
    "run a shell command once on every node: torchrun, nvidia-smi, df",
    usage="[options] COMMAND...",
    words=Words(
        "COMMAND",
        "as you would type it in a shell, with pipes and quotes",
        most=None,
        least=1,
        rest=True,
        joined=True,
        completes="file",
    ),
    flags=(
        replace(_TARGETS, help="only the nodes of these ranks"),
        replace(_MESH, help="the nodes of this mesh (default: main)"),
        NOBLOCK,
        Flag("--beside", "do not wait for scripts and other commands"),
        ENVIRONMENT,
        _out("keep the exit codes, a list by node; with --noblock, the Run"),
        _timeout("command"),
    ),
    notes="Starts in the ranks' directory. NODE_RANK, NNODES, NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT are\n"
    "set, so that `torchrun` without flags runs on all ranks. ■ (Ctrl-C) ends it on every node.",
    examples=(
        ("%mesh sh torchrun train.py --lr 3e-4", "on all nodes, as one job"),
        ("%mesh sh --beside nvidia-smi -L | wc -l", "while a script runs"),
    ),
)
PANEL = Command(
    "panel",
    "the pool live: reserve, watch GPUs and ranks, read logs, restart, release",
    usage="[NAME]",
    words=Words("NAME", "show this reservation alone", completes="reservation"),
    notes="Stays live while cells run. Asks the nodes only while somebody looks.\n"
    "Live in JupyterLab, Notebook 7, VS Code and Colab. Elsewhere it shows the current state.",
    examples=(("%mesh panel", ""), ("mesh.panel()", "the same for one mesh, in Python")),
)
STATUS = Command(
    "status",
    "the ranks, what they do, and why any of them died",
    usage="[--mesh NAME]",
    flags=(_MESH,),
)
STACKS = Command(
    "stacks",
    "where every rank is: its Python stack, equal ones once",
    usage="[-t T]",
    flags=(_TARGETS, _MESH),
    notes="Works while ranks run or hang, also inside C code.",
    examples=(("%mesh stacks -t 0,7", "two ranks"),),
)
ACTORS = Command(
    "actors",
    "the actors on the ranks: what they run, for how long, and what waits; equal ones once",
    notes="Works while ranks run or hang. In a %%mesh cell `actors[NAME]` is a rank's own.",
    examples=(("%mesh actors", ""),),
)
LOGS = Command(
    "logs",
    "what ranks printed, from the logs on disk",
    usage="[NAME] [-t T] [-n LINES] [--run N] [--follow]",
    words=Words("NAME", "the reservation (default: this notebook's), also one that has ended", completes="reservation"),
    flags=(
        _TARGETS,
        _MESH,
        Flag(
            "--lines",
            f"the last LINES of each rank, not in total (default: {LOG_LINES}; 0: all)",
            short="-n",
            value="LINES",
            kind="number",
        ),
        Flag("--run", "only run number N; if it failed, with the traceback", value="N", kind="count", completes="run"),
        Flag("--follow", "show new lines as they come, until ■ (Ctrl-C) or the end of --run", short="-f"),
        FOLD_FLAG,
    ),
    notes="Lines fold as in cells. With --run, each rank has its own lines: the default is --fold equal then.\n"
    "What a reservation printed is kept for 7 days after its end: %mesh logs NAME.",
    examples=(
        ("%mesh logs -t 3 -n 200", "the last 200 lines of rank 3"),
        ("%mesh logs --run 12 -n 0", "all of run 12"),
    ),
)
FOLD = Command(
    "fold",
    "which lines of several ranks show as one row, in cells from now on",
    usage=f"{' | '.join(FOLDS_BY)} | default",
    words=Words("HOW", "numbers, times, equal, off; default: by the project or the number of ranks", completes="fold"),
    notes="numbers  lines that differ only in numbers and times: [0-127] loss 2.31–2.35\n"
    f"         (the default on more than {FEW_RANKS} ranks)\n"
    f"times    lines that differ only in dates and times of day (the default on up to {FEW_RANKS} ranks)\n"
    "equal    lines that are equal\n"
    "off      no lines: each rank's line is a row\n"
    "A mark behind the row, as in [77]! loss: nan, names a number that is not like the others.\n"
    "Nothing is lost: click an underlined row, or use %mesh logs --run N, to see each rank's own line.\n"
    "Without HOW, says what is set. A project sets fold in pyproject.toml's [tool.monarch_nb].",
    examples=(("%mesh fold equal", "each rank's own numbers, also on many ranks"), ("%%mesh --fold off", "one cell")),
)
SHOW = Command(
    "show",
    "choose the ranks whose output cells show from now on",
    usage="RANKS | all",
    words=Words("RANKS", "as -t takes them; all shows all ranks again", completes="target"),
    notes="A line says how much the other ranks wrote on stderr. Failures show as always.\n"
    "Without RANKS, says what is set.",
    examples=(("%mesh show 0", "rank 0's output alone"), ("%%mesh --show 0", "one cell")),
)
_OF = Flag(
    "--of", "the reservation (default: this notebook's), also one that has ended", value="R", completes="reservation"
)
PLOT = Command(
    "plot",
    "curves of numbers that ranks print: loss: 2.31, 'loss': 2.3, loss=2.3, train/loss 2.3",
    usage="[NAME...] [--x NAME] [--run N[,N]] [-t T] [--of RESERVATION]",
    words=Words("NAME", "the name beside the numbers; without a NAME, lists all names", most=None, completes="metric"),
    flags=(
        Flag("--x", "the name for the x axis (default: the step of a line)", value="NAME"),
        Flag(
            "--run",
            "run number N, or several: 12,14 (default: the newest that printed the name)",
            value="N",
            completes="run",
        ),
        _TARGETS,
        _MESH,
        _OF,
    ),
    notes="Shows the newest run that printed all the names, else for each name the newest run that printed it.\n"
    "Without --run, it searches the newest 20 runs. While a run goes on, it waits for a name\n"
    "that no run has printed yet.\n"
    "The line is the first rank's. A band spans all ranks where they differ. Live while the run goes on,\n"
    "also in a new kernel: the numbers come from the nodes' logs.\n"
    "What a reservation printed is kept for 7 days after its end, and can be drawn so long.\n"
    "run.metrics() has them in Python, ready for pandas.",
    examples=(
        ("%mesh plot", "the names that can be drawn"),
        ("%mesh plot loss grad_norm", "two charts, against the step"),
        ("%mesh plot loss --x tokens --run 12,14", "two runs over each other"),
    ),
)
DOCTOR = Command(
    "doctor",
    "compare this kernel with every node: Python, torch, CUDA, packages, clocks, space",
    notes="Compares the packages that this notebook has imported. Says what differs, where, and what to do.",
)
DEBUG = Command(
    "debug",
    "open a prompt for ranks that stopped at breakpoint(), or for their last error",
    usage="[--post-mortem] [-t T] | --on-breakpoint HOW",
    flags=(
        _TARGETS,
        _MESH,
        Flag("--post-mortem", "open the exception of ranks whose last run or endpoint failed"),
        Flag(
            "--on-breakpoint",
            "from now on at breakpoint(), also of endpoints: stop, go on, fail",
            value="HOW",
            choices=ON_BREAKPOINT,
        ),
    ),
    notes="Shows where ranks have stopped, and reads commands: list, attach [NAME] RANK, cast [NAME] RANKS COMMAND,\n"
    "continue, quit, help. After attach you have all of pdb, and detach returns to the prompt. Other\n"
    "lines (p x, w, n) go to all stopped ranks. NAME is an actor's, or `cell`. RANKS is what -t takes.\n"
    "A cell that waits for ranks opens the same prompt when they stop.",
    examples=(
        ("%mesh debug", "from another cell or notebook, also after a kernel restart"),
        ("%mesh debug --post-mortem -t 2", "the frames of the exception on rank 2"),
    ),
)
PUSH = Command(
    "push",
    "set variables of this kernel on every rank",
    usage="NAME... | NAME=EXPRESSION...",
    words=Words(
        "NAME", "a variable of this kernel, or NAME=EXPRESSION", most=None, least=1, raw=True, completes="kernel_name"
    ),
    flags=(_TARGETS, _MESH),
    examples=(
        ("%mesh push tokens config", "two variables"),
        ("%mesh push lr=3e-4", "a value"),
        ("%mesh push {names}", "the variables whose names the kernel's `names` holds"),
    ),
)
PULL = Command(
    "pull",
    "fetch a variable or expression from every rank: a list by rank",
    usage="EXPRESSION [-o NAME] [-t T]",
    words=Words("EXPRESSION", "evaluated on each rank", most=None, least=1, joined=True, completes="rank_name"),
    flags=(
        _out("keep the list in this variable of the kernel"),
        _TARGETS,
        _MESH,
    ),
    examples=(("%mesh pull losses -o losses", ""), ("total = %mesh pull sum(losses) -t 0", "a list of one value")),
)
SAVE = Command(
    "save",
    "save what the ranks hold: models, optimizers, tensors, plain values, random states",
    usage="DIR [NAME...] [--every 10m|500steps] [--at-end] [--keep N] [--async | --bring] [--strict] | --off",
    words=Words(
        "DIR [NAME]",
        "a directory of saves, and what to save (default: all names of the cells)",
        most=None,
        least=0,
        completes="rank_name",
    ),
    flags=(
        Flag("--every", "save by itself from now on: 10m, or 500steps of the optimizers", value="WHEN"),
        Flag("--at-end", "also before the time limit, and when the engine takes the nodes away"),
        Flag("--before", "how long before the time limit (default: 10m)", value="TIME", kind="duration"),
        Flag("--off", "save by itself no more"),
        Flag("--keep", f"how many of the newest saves in DIR stay (default: {KEPT_SAVES})", value="N", kind="count"),
        Flag("--bring", "keep the save on this computer: for nodes that have no common storage"),
        Flag("--strict", "refuse, too, when only some ranks have a name"),
        Flag("--async", "go on when the state is copied in memory; ranks write while the next cells run"),
        _TARGETS,
        _MESH,
    ),
    notes="Each save is a new directory in DIR: an ordinary checkpoint of torch.distributed.checkpoint. It\n"
    "appears when it is whole. What is equal on all ranks is written once. Functions, classes and modules\n"
    "are not saved: the notebook's cells make them again. A relative DIR is the notebook's own where the\n"
    "nodes see it, else one of --shared.",
    examples=(
        ("%mesh save checkpoints/a", "all that can be saved"),
        ("%mesh save checkpoints/a model optimizer step --keep 5", ""),
        ("%mesh save checkpoints/a --every 10m --at-end --async", "by itself, while cells train and without a kernel"),
    ),
)
LOAD = Command(
    "load",
    "load a save into the objects of the same names, on as many ranks as there are now",
    usage="DIR [NAME...] [--only NAME[,NAME]] [--strict] [--bring]",
    words=Words(
        "DIR [NAME]",
        "of saves, of which the newest is loaded, or of one save; and what to load (default: all)",
        most=None,
        least=1,
        completes="file",
    ),
    flags=(
        Flag("--only", "the same as NAME: model,optimizer", value="NAMES"),
        Flag("--bring", "the save is on this computer, and nodes do not see it"),
        Flag("--strict", "refuse, too, when something would be left out, or a name is not in the save"),
        _TARGETS,
        _MESH,
    ),
    notes="First run the cells that make model and optimizer. If something is missing, or has another shape or\n"
    "type, it is named, and nothing has changed. What differs by rank is loaded on as many ranks as saved it.",
    examples=(("%mesh load checkpoints/a", "the newest"), ("%mesh load checkpoints/a/0003 model", "this name alone")),
)
SAVES = Command(
    "saves",
    "the saves in a directory: when, of which run, how large, which names",
    usage="[DIR]",
    words=Words("DIR", "of saves, or of directories of saves (default: checkpoints)", completes="file"),
    flags=(_MESH,),
    examples=(("%mesh saves", ""), ("%mesh saves /data/me/checkpoints", "")),
)
DIFF = Command(
    "diff",
    "which ranks have another value than the rest: models, optimizers, configurations, random states",
    usage="EXPRESSION [--over DIMENSION] [--when-idle] [-t T] | --rng | --env",
    words=Words("EXPRESSION", "evaluated once on each rank", most=None, joined=True, completes="rank_name"),
    flags=(
        Flag(
            "--over",
            "compare only ranks that differ in no other dimension of the mesh or of a DeviceMesh",
            value="DIMENSION",
        ),
        Flag("--rng", "compare the random states of Python, numpy and torch"),
        Flag("--env", "compare packages, variables, torch's settings, the code's commit and GPUs"),
        Flag("--when-idle", "wait until the ranks have finished what they compute"),
        _TARGETS,
        _MESH,
    ),
    notes="Ranks send digests, not tensors. Works on ranks that stand at a breakpoint() too: there the\n"
    "expression means the variables that are seen there.",
    examples=(
        ("%mesh diff model", "its parameters and buffers, by name"),
        ("%mesh diff optimizer", "its state and hyperparameters"),
        ("%mesh diff config --over procs", "within each host of a mesh of hosts × procs"),
        ("%mesh diff model --over dp", "the replicas of each shard, by a dimension of the ranks' DeviceMesh"),
    ),
)
SYNC = Command(
    "sync",
    "send changed files to the nodes now; every cell does so by itself",
    usage="[--status | --add DIR [--as NAME] | --remove DIR | [--dry-run] [--overwrite]]",
    flags=(
        Flag("--dry-run", "show what would be sent"),
        Flag("--status", "show what every node has, and what ranks changed there"),
        Flag("--add", "sync this directory too, from now on: data, another package", value="DIR", completes="file"),
        Flag("--remove", "stop syncing a directory that you added", value="DIR", completes="file"),
        Flag("--as", "the name of DIR beside the notebook's files (default: its own)", value="NAME"),
        Flag("--overwrite", "also replace files that ranks wrote, and bring back files that they removed"),
    ),
    notes="Syncs the notebook's project: the nearest directory with .git or pyproject.toml, or else its own.\n"
    "Leaves out: files that .gitignore and .meshignore name, .git, virtual environments, caches, notebooks,\n"
    "and files over 100 MB (max-file-size in pyproject.toml's [tool.monarch_nb]).\n"
    "Nodes that see the directory need no copy.",
    examples=(("%mesh sync --add ../library", "ranks can `import library`"), ("%mesh sync --dry-run", "")),
)
FETCH = Command(
    "fetch",
    "bring a file or directory here from a node: checkpoints, traces, logs",
    usage="PATH [--rank R | --node N] [--to PATH] [--overwrite]",
    words=Words("PATH", "on the node, relative to the rank's directory; also a pattern: 'checkpoints/*.pt'", least=1),
    flags=(
        Flag("--rank", "the rank with the directory (default: 0); all: each rank's, into rank0/, rank1/, …", value="R"),
        Flag("--node", "the node, by number; all: each node's, into node0/, node1/, …", value="N"),
        Flag("--to", "where to put it here (default: the same relative path)", value="PATH", completes="file"),
        Flag("--overwrite", "replace files here that differ"),
    ),
    examples=(("%mesh fetch checkpoints/last.pt --rank 4", ""), ("%mesh fetch /tmp/trace.json --to traces/", "")),
)
LS = Command(
    "ls",
    "list a directory of a node",
    usage="[PATH] [--rank R | --node N]",
    words=Words("PATH", "on the node (default: the rank's directory)"),
    flags=(
        Flag("--rank", "the rank with the directory (default: 0)", value="R", kind="number"),
        Flag("--node", "the node, by number", value="N", kind="number"),
    ),
)
PIP = Command(
    "pip",
    "install packages into the environment of all nodes",
    usage="ARGUMENTS...",
    words=Words("ARGUMENTS", "pip's own, as in a terminal", most=None, least=1, verbatim=True, completes="file"),
    notes="Runs once in each environment that differs from the others', on the first rank that has it.\n"
    "Modules that are imported already stay as they are until %mesh restart.",
    examples=(("%mesh pip install einops", ""), ("%mesh pip list", "what is there")),
)
INTERRUPT = Command(
    "interrupt",
    "stop running cells on every rank, and drop queued ones; variables stay",
    notes="Stops runs, whoever submitted them, and frees ranks that hang in a collective. Queued runs never\n"
    "start. Also stops endpoints of actors, on all meshes of the reservation, and drops messages that\n"
    "wait for them. Ranks that do not stop are named, with the place where they hang. Another\n"
    "interrupt in the next 10 s kills just these and starts them anew. Code that handles the\n"
    "interrupt is left alone, however long it takes; a second one reaches it again, and only if it\n"
    "goes on after that, too, a third one in the next 10 s kills it.",
)
RESTART = Command(
    "restart",
    "fresh ranks under the same coordinates",
    usage="[-t T]",
    flags=(_TARGETS, _MESH),
    notes="Restarted ranks lose their variables and imports. The other ranks keep theirs. Fresh ranks answer\n"
    "while the old processes still end, for two seconds at most. On GPUs the old processes end first.",
    examples=(("%mesh restart -t 3", "rank 3 alone"),),
)
ON = Command(
    "on",
    "run every following cell on the mesh; %%local at a cell's top runs it in the kernel",
    usage="[-t T]",
    flags=(_TARGETS, _MESH),
    notes="A cell that begins with %mesh runs in the kernel. %mesh lines at the end of a cell run after it.",
)
OFF = Command("off", "run cells in the kernel again")
HELP = Command(
    "help",
    "show this list, or the help of SUBCOMMAND",
    usage="[SUBCOMMAND]",
    words=Words("SUBCOMMAND", "reserve, attach, …; cell for %%mesh", completes="subcommand"),
)

MESH = CommandSet(
    "%mesh",
    "live ranks for this notebook",
    sections={
        "Hold": (RESERVE, ATTACH, DETACH, RELEASE, REPLACE, GROW, SHRINK, STOP, EXTEND, SHARE, LIST),
        "Run": (RUN, SH),
        "Look": (PANEL, STATUS, STACKS, TOP, ACTORS, LOGS, PLOT, DIFF, MEMORY, FOLD, SHOW, DEBUG, DOCTOR),
        "Data": (PUSH, PULL, SAVE, LOAD, SAVES),
        "Files": (SYNC, FETCH, LS),
        "Steer": (PIP, INTERRUPT, RESTART, ON, OFF, HELP),
    },
    first=(RESERVE, RUN, PUSH, PULL, STATUS, LOGS, INTERRUPT, RESTART, ATTACH, RELEASE),
    examples=(
        ("%mesh reserve dev --nodes 2 --procs 4", "8 CPU ranks, live until released"),
        ("%mesh reserve big --nodes 2 --gpus 8 --on slurm", "nodes of an engine: slurm, k8s, ray, ..."),
        ("%%mesh", "at the top of a cell: run it on every rank"),
        ("%%mesh -t 0 -o loss", "on rank 0; keep the last value in the kernel"),
        ("%%mesh --profile", "where the time goes; --watch nan: where a nan comes from"),
        ("%mesh help %%mesh", "all flags of a cell"),
        ("%mesh attach", "after a kernel restart: everything is still there"),
    ),
)

CELL = Command(
    "%%mesh",
    "run the cell on the ranks; their output and values show here",
    usage="[-t T] [-a] [-o NAME] [options]",
    flags=(
        _TARGETS,
        _MESH,
        NOBLOCK,
        _out("keep the values, a list by rank; with --noblock, the Run"),
        Flag(
            "--group-outputs",
            "as it came, rank after rank, or stdout, stderr, displays",
            value="HOW",
            choices=("order", "rank", "type"),
        ),
        FOLD_FLAG,
        Flag(
            "--show",
            "show only these ranks' output, as for -t (%mesh help show)",
            value="T",
            completes="target",
        ),
        Flag("--stream", "show output while the cell runs, or only at its end", negatable=True),
        _timeout("run"),
        Flag(
            "--on-error",
            "if a rank fails: free ranks that wait in vain, wait, or stop all",
            value="HOW",
            choices=("free", "wait", "abort"),
        ),
        _ON_BREAKPOINT,
        Flag("--sync", "first send changed files to the nodes, or not", negatable=True),
        Flag("--local", "run the cell in the kernel too"),
        *INSTRUMENTS,
        WATCH,
        *SCALING,
    ),
    notes="The cell's body is left as it is; {x} and $x are expanded in this line only.",
    examples=(
        ("%%mesh -t 0,2-3", "ranks 0, 2 and 3"),
        ("%%mesh -t hosts=0 --noblock -o run", "in the background; run.result() waits"),
        ("%%mesh --mesh judges", "on the ranks of another mesh of the reservation"),
        ("%%mesh --watch nan", "where does the nan come from"),
        ("%%mesh --scale 1,2,4,8 --per tokens", "how it scales, by what it prints: tokens: 12,345"),
    ),
)
