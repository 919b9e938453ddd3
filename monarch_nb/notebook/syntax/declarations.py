"""What `%mesh`, its subcommands and `%%mesh` accept: declarations only."""

from __future__ import annotations

from monarch_nb.client.scripts.torchrun_flags import FLAGS
from monarch_nb.config import LOG_LINES
from monarch_nb.notebook.syntax.command_line import Command, CommandSet, Flag, Words

_TARGETS = Flag(
    "--targets", "ranks: 0 | 0,2-3 | ::2 | all | hosts=0,procs=0:2", short="-t", value="T", completes="target"
)
_MESH = Flag("--mesh", "a mesh of the reservation beside main: %mesh status names them", value="NAME", completes="mesh")
_NOBLOCK = Flag("--noblock", "go on at once; output keeps arriving here", short="-a")
_WAIT = Flag(
    "--wait",
    "wait in line for what others hold, as long as it takes, or at most this time: --wait 2h",
    value="T",
    kind="duration",
    optional=True,
)
_INTO = Flag(
    "--into",
    "main, or another mesh: its ranks start anew on all nodes; their variables are lost",
    value="MESH",
    completes="mesh",
)

RESERVE = Command(
    "reserve",
    "hold nodes and start ranks on them, or return to those already held",
    usage="[NAME] [--nodes N] --gpus N | --procs N",
    passes_on="flags for the engine of --on alone, as it takes them: -- --partition=a100",
    magic="%mesh ",
    section="Hold",
    words=Words(
        "NAME", "what to call it; the same name and shape again is the same live mesh", completes="reservation"
    ),
    flags=(
        Flag("--nodes", "how many nodes (1 when not said)", value="N", kind="count"),
        Flag("--gpus", "GPUs per node, one rank each", value="N", kind="count"),
        Flag("--procs", "CPU ranks per node", value="N", kind="count"),
        Flag("--pool", "the pool to take them from (the local one, started when it is not up)", value="POOL"),
        Flag(
            "--on",
            "the engine to ask for nodes instead: slurm, lsf, k8s, ray, ssh:lab, ...",
            value="ENGINE",
        ),
        Flag("--python", "the python of the ranks (this kernel's on the local pool)", value="PATH", completes="file"),
        Flag(
            "--env",
            "set a variable in the ranks; NAME alone takes this kernel's value",
            value="NAME[=VALUE]",
            repeat=True,
        ),
        Flag(
            "--preload", "a module to import before ranks are forked (torch when not said)", value="MODULE", repeat=True
        ),
        Flag(
            "--files",
            "directory whose files ranks work with (the notebook's project), or none",
            value="DIR",
            completes="file",
        ),
        Flag(
            "--reload",
            "before each cell: modules whose files changed (auto), or only by %mesh restart (off)",
            value="HOW",
            choices=("auto", "off"),
        ),
        Flag(
            "--shared",
            "storage that all nodes see, for data and checkpoints: $MONARCH_NB_SHARED in ranks",
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
        Flag("--force-busy", "also GPUs on which programs of others run, where no others are free"),
        Flag(
            "--share",
            "let somebody else see it, or run cells on it too (%mesh share)",
            value="WHO[:run]",
            repeat=True,
        ),
        _WAIT,
        Flag("--replace", "release what is held under that name first"),
    ),
    notes="Ranks stay until they are released: they survive this kernel, the browser and the Jupyter server.",
    examples=(
        ("%mesh reserve dev --nodes 2 --gpus 8", "16 ranks with a GPU each"),
        ("%mesh reserve dev --nodes 2 --procs 4", "8 CPU ranks"),
        ("%mesh reserve dev --gpus 8 --time 8h --idle 2h", "given back in the evening, or when it is forgotten"),
        ("%mesh reserve dev --gpus 8 --on slurm -- -p a100", "a job of Slurm"),
        ("%mesh reserve dev --nodes 2 --gpus 8 --on ssh:lab", "two of the hosts that ssh knows as lab-..."),
        ("%mesh reserve dev --procs {n} --env WANDB_MODE=offline", "{x} and $x are this kernel's variables"),
    ),
)
ATTACH = Command(
    "attach",
    "use a mesh that is held, and follow what runs on it to the end",
    usage="[NAME] [--pool POOL] [--noblock] [--from-start | --run N]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation; this notebook's when not said", completes="reservation"),
    flags=(
        _NOBLOCK,
        Flag("--pool", "the pool that it is in (this notebook's, else the default one)", value="POOL"),
        Flag("--from-start", "show all the output, not only what was lost; the last cell's if all was shown"),
        Flag(
            "--run",
            "show all of run number N, also one that was shown before",
            value="N",
            kind="count",
            completes="run",
        ),
        Flag("--mesh", "only what ran on this mesh; with --run: whose run it is", value="NAME", completes="mesh"),
    ),
    notes="Also shows finished runs of this notebook that nobody has seen, results and errors included.\n"
    "Interrupting it interrupts the run.",
    examples=(
        ("%mesh attach", "after a kernel restart: the running cell goes on here"),
        ("%mesh attach dev --noblock", "from another notebook, in the background"),
    ),
)
DETACH = Command(
    "detach",
    "forget the mesh in this notebook; it stays held, with all its variables",
    magic="%mesh ",
    section="Hold",
)
RELEASE = Command(
    "release",
    "end the ranks and give the nodes back",
    usage="[NAME | --all] [--pool POOL]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation; this notebook's when not said", completes="reservation"),
    flags=(
        Flag("--all", "every reservation of yours in the pool"),
        Flag("--pool", "the pool that it is in (this notebook's, else the default one)", value="POOL"),
    ),
    notes="Never asks. Variables on the ranks are lost.",
    examples=(("%mesh release dev", ""),),
)
_MORE_TIME = Flag(
    "--time", "for which an engine is asked (what is left of the reservation's time)", value="T", kind="duration"
)
REPLACE = Command(
    "replace",
    "put free nodes in the places of nodes that never come back",
    usage="[NAME] [--node N ...] [--wait [T]] [--time T]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation of yours; this notebook's when not said", completes="reservation"),
    flags=(
        Flag(
            "--node",
            "a node by name or number, also one that answers: its ranks end (those that do not answer)",
            value="N",
            repeat=True,
            completes="node",
        ),
        _WAIT,
        _MORE_TIME,
    ),
    notes="The new ranks have the numbers of those that are lost, the same files and environment, and no variables.\n"
    "The others keep theirs; call dist.init_process_group() on all ranks again. A lost node that is back\n"
    "ends its ranks and is free.",
    examples=(
        ("%mesh replace", "after: host2 unreachable since 14:03:05"),
        ("%mesh replace --node host3", "host3 answers, but is to be repaired"),
    ),
)
GROW = Command(
    "grow",
    "hold more nodes",
    usage="[NAME] --nodes N [--mesh NAME | --into MESH] [--wait [T]] [--time T]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation of yours; this notebook's when not said", completes="reservation"),
    flags=(
        Flag("--nodes", "how many there are to be, or +2 for two more", value="N"),
        Flag("--mesh", "what the new mesh over all of them is called (grown when not said)", value="NAME"),
        _INTO,
        _WAIT,
        _MORE_TIME,
    ),
    notes="main stays as it is, on the nodes that it is on; the new mesh has as many ranks on each, beside its.\n"
    "Nodes that were there keep their numbers, and so do their ranks. The same cell again changes nothing.",
    examples=(
        ("%mesh grow dev --nodes 4", "4 nodes; %%mesh --mesh grown runs a cell on all of them"),
        ("%mesh grow dev --nodes 4 --into main", "4 nodes, and main has ranks on all of them"),
        ("%mesh grow --nodes +1 --into main --wait", "one more, as soon as one is free"),
    ),
)
SHRINK = Command(
    "shrink",
    "give some of the nodes back",
    usage="[NAME] --nodes N | --node N ... [--into MESH]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation of yours; this notebook's when not said", completes="reservation"),
    flags=(
        Flag("--nodes", "how many are to be left: those that do not answer go, then the last ones", value="N"),
        Flag("--node", "a node to give back, by name or number", value="N", repeat=True, completes="node"),
        _INTO,
    ),
    notes="Nodes on which no mesh has ranks are given back at once; of others --into says whose ranks start anew,\n"
    "numbered in the order of the nodes that are left, or %mesh stop ends a mesh first.",
    examples=(
        ("%mesh shrink dev --nodes 2 --into main", "2 nodes are left, with ranks that are all new"),
        ("%mesh shrink --node host3 --into main", "go on without host3"),
    ),
)
STOP = Command(
    "stop",
    "end a mesh beside main; its nodes are held on",
    usage="NAME [--of RESERVATION]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a mesh that grow or spawn_procs has made", least=1, completes="mesh"),
    flags=(Flag("--of", "of this reservation; this notebook's when not said", value="R", completes="reservation"),),
    notes="Its variables are lost, and what runs on it ends.",
    examples=(("%mesh stop grown", ""), ("%mesh stop grown --of dev", "also when this notebook holds another one")),
)
EXTEND = Command(
    "extend",
    "hold the mesh for longer: adds to its time limit",
    usage="TIME",
    magic="%mesh ",
    section="Hold",
    words=Words("TIME", "how much longer: 30m, 2h, 1h30m", least=1),
    examples=(("%mesh extend 2h", "released two hours later than it would have been"),),
)
SHARE = Command(
    "share",
    "let somebody else see the mesh, or run cells on it; without --to: who may",
    usage="[NAME] [--to WHO [--read | --run | --end]]",
    magic="%mesh ",
    section="Hold",
    words=Words("NAME", "a reservation of yours; this notebook's when not said", completes="reservation"),
    flags=(
        Flag("--to", "whose certificate says this name", value="WHO"),
        Flag("--read", "see output, logs and the panel, and follow what runs (this when nothing is said)"),
        Flag("--run", "run cells as well: they queue with yours, in order"),
        Flag("--end", "no longer: what they follow ends at once, what they have queued is dropped"),
    ),
    notes="Whoever runs cells can do on the nodes what you can. Ends with the reservation.",
    examples=(("%mesh share dev --to bob --run", "bob: %mesh attach dev"),),
)
LIST = Command("list", "every reservation, in all your pools", magic="%mesh ", section="Hold")
ON_BREAKPOINT = ("stop", "go-on", "error")
_ON_BREAKPOINT = Flag(
    "--on-breakpoint",
    "at breakpoint(): stop and ask here, go on, or fail (headless: go-on)",
    value="HOW",
    choices=ON_BREAKPOINT,
)
_OURS_TOO = ("--max-restarts", "--module")
RUN = Command(
    "run",
    "run a script as torchrun does, but warm: in fresh processes that have torch imported",
    usage="[options] SCRIPT ARGUMENTS... | -m MODULE ARGUMENTS...",
    magic="%mesh ",
    section="Run",
    words=Words(
        "SCRIPT",
        "a file as the ranks see it; what follows is the script's",
        most=None,
        least=1,
        rest=True,
        completes="script",
    ),
    flags=(
        _TARGETS,
        _MESH,
        _NOBLOCK,
        Flag("--in-place", "in the live ranks' own namespace, as %run -i: what it leaves stays", short="-i"),
        Flag("--beside", "do not wait for other scripts on these ranks"),
        *(Flag(each.name, each.help, each.short, each.value) for each in FLAGS if each.name in _OURS_TOO),
        Flag(
            "--out",
            "keep the exit codes, a list by rank; with --noblock the Run",
            short="-o",
            value="NAME",
            completes="kernel_name",
        ),
        _ON_BREAKPOINT,
        Flag("--timeout", "raise TimeoutError after S seconds; the script goes on", value="S", kind="seconds"),
        *(
            Flag(each.name, each.help, each.short, each.value, hidden=True)
            for each in FLAGS
            if each.name not in _OURS_TOO
        ),
    ),
    notes="Its processes have torchrun's environment, sys.argv and __main__ of their own, and end with it.\n"
    "torchrun's other flags (--nnodes, --nproc-per-node, --standalone, …; not -t, which is --targets) and PET_\n"
    "variables are checked against what is held: docs/scripts.md has a table.",
    examples=(
        ("%mesh run train.py --lr 3e-4", "on all ranks"),
        ("%mesh run -t hosts=0 -m scripts.base_train -- --depth=4", "a module, on one node"),
        ("%mesh run -i train.py", "then `model` is there in %%mesh cells"),
        ("%mesh run --max-restarts 3 train.py --resume", "started again when a rank dies"),
    ),
)
SH = Command(
    "sh",
    "run a line of the shell once on every node: torchrun, nvidia-smi, df",
    usage="[options] COMMAND...",
    magic="%mesh ",
    section="Run",
    words=Words(
        "COMMAND",
        "for the shell, as it stands: pipes and quotes too",
        most=None,
        least=1,
        rest=True,
        joined=True,
        completes="file",
    ),
    flags=(
        Flag("--targets", "only the nodes of these ranks", short="-t", value="T", completes="target"),
        Flag("--mesh", "the nodes of this mesh (main when not said)", value="NAME", completes="mesh"),
        _NOBLOCK,
        Flag("--beside", "do not wait for scripts and other commands"),
        Flag(
            "--env",
            "set a variable for it; NAME alone takes this kernel's value",
            value="NAME[=VALUE]",
            repeat=True,
        ),
        Flag(
            "--out",
            "keep the exit codes, a list by node; with --noblock the Run",
            short="-o",
            value="NAME",
            completes="kernel_name",
        ),
        Flag("--timeout", "raise TimeoutError after S seconds; the command goes on", value="S", kind="seconds"),
    ),
    notes="Begins in the ranks' directory, with what makes `torchrun` without flags run on all that is held:\n"
    "NODE_RANK, NNODES, NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT. ■ (Ctrl-C) ends it on every node.",
    examples=(
        ("%mesh sh torchrun train.py --lr 3e-4", "on all nodes, as one job"),
        ("%mesh sh --beside nvidia-smi -L | wc -l", "while a script runs"),
    ),
)
PANEL = Command(
    "panel",
    "the pool live: reserve, watch GPUs and ranks, read logs, restart, release",
    usage="[NAME]",
    magic="%mesh ",
    section="Look",
    words=Words("NAME", "show this reservation alone", completes="reservation"),
    notes="Goes on while cells run, and asks the nodes only while somebody sees it.\n"
    "In JupyterLab, Notebook 7, VS Code and Colab; elsewhere it shows how things are now.",
    examples=(("%mesh panel", ""), ("mesh.panel()", "the same for one mesh, in Python")),
)
STATUS = Command(
    "status",
    "the ranks, what they do, and why any of them died",
    usage="[--mesh NAME]",
    magic="%mesh ",
    section="Look",
    flags=(_MESH,),
)
STACKS = Command(
    "stacks",
    "where every rank is: its Python stack, equal ones once",
    usage="[-t T]",
    magic="%mesh ",
    section="Look",
    flags=(_TARGETS, _MESH),
    notes="Works while ranks run or hang, also inside C code.",
    examples=(("%mesh stacks -t 0,7", "two ranks"),),
)
ACTORS = Command(
    "actors",
    "the actors on the ranks: what they run and for how long, and what waits; those alike once",
    magic="%mesh ",
    section="Look",
    notes="Works while ranks run or hang. In a %%mesh cell `actors[NAME]` is a rank's own.",
    examples=(("%mesh actors", ""),),
)
LOGS = Command(
    "logs",
    "what ranks printed, from the logs on disk",
    usage="[-t T] [-n LINES] [--run N] [--follow]",
    magic="%mesh ",
    section="Look",
    flags=(
        _TARGETS,
        _MESH,
        Flag(
            "--lines",
            f"the last LINES of each rank ({LOG_LINES} when not said; 0: all)",
            short="-n",
            value="LINES",
            kind="number",
        ),
        Flag("--run", "only run number N; if it failed, with the traceback", value="N", kind="count", completes="run"),
        Flag("--follow", "go on with what comes, until ■ (Ctrl-C) or the end of the run named", short="-f"),
    ),
    examples=(
        ("%mesh logs -t 3 -n 200", "the last 200 lines of rank 3"),
        ("%mesh logs --run 12 -n 0", "all of run 12"),
    ),
)
DOCTOR = Command(
    "doctor",
    "compare this kernel with every node: Python, torch, CUDA, packages, clocks, room",
    magic="%mesh ",
    section="Look",
    notes="Packages are those that this notebook has imported. Says what differs, where, and what to do.",
)
DEBUG = Command(
    "debug",
    "answer ranks that have stopped at breakpoint(), or look at their last error",
    usage="[--post-mortem] [-t T] | --on-breakpoint HOW",
    magic="%mesh ",
    section="Look",
    flags=(
        _TARGETS,
        _MESH,
        Flag("--post-mortem", "enter the last exception of ranks whose last run or endpoint failed"),
        Flag(
            "--on-breakpoint",
            "stop, go on or fail at breakpoint() from now on, in endpoints too",
            value="HOW",
            choices=ON_BREAKPOINT,
        ),
    ),
    notes="Shows where ranks have stopped and reads commands below: list, attach NAME RANK (then all of pdb; detach\n"
    "comes back), cast NAME ranks(...) COMMAND, continue, quit, help. NAME is an actor's, or `cell`.\n"
    "The cell that waits for ranks which stop opens the same by itself.",
    examples=(
        ("%mesh debug", "from another cell or notebook, also after a kernel restart"),
        ("%mesh debug --post-mortem -t 2", "the frames of what rank 2 raised"),
    ),
)
PUSH = Command(
    "push",
    "set variables of this kernel on every rank",
    usage="NAME... | NAME=EXPRESSION...",
    magic="%mesh ",
    section="Data",
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
    magic="%mesh ",
    section="Data",
    words=Words("EXPRESSION", "evaluated on each rank", most=None, least=1, joined=True, completes="rank_name"),
    flags=(
        Flag(
            "--out", "keep the list in this variable of the kernel", short="-o", value="NAME", completes="kernel_name"
        ),
        _TARGETS,
        _MESH,
    ),
    examples=(("%mesh pull losses -o losses", ""), ("total = %mesh pull sum(losses) -t 0", "a list of one value")),
)
SYNC = Command(
    "sync",
    "bring files that changed to the nodes now; every cell does so by itself",
    usage="[--status | --add DIR [--as NAME] | --remove DIR | [--dry-run] [--overwrite]]",
    magic="%mesh ",
    section="Files",
    flags=(
        Flag("--dry-run", "show what would go"),
        Flag("--status", "show what every node has, and what ranks changed there"),
        Flag("--add", "also this directory from now on: data, another package", value="DIR", completes="file"),
        Flag("--remove", "a directory that was added: no longer", value="DIR", completes="file"),
        Flag("--as", "what DIR is called beside the notebook's files (its own name when not said)", value="NAME"),
        Flag("--overwrite", "also replace what ranks wrote or changed, and bring back what they removed"),
    ),
    notes="Synced is the notebook's project: the nearest directory with .git or pyproject.toml, or else its own.\n"
    "Not synced: what .gitignore and .meshignore say, .git, virtual environments, caches, notebooks, and files\n"
    "over 100 MB (max-file-size in pyproject.toml's [tool.monarch_nb]).\n"
    "Nodes that see the directory need no copy.",
    examples=(("%mesh sync --add ../library", "ranks can `import library`"), ("%mesh sync --dry-run", "")),
)
FETCH = Command(
    "fetch",
    "bring a file or directory from a node: checkpoints, traces, logs",
    usage="PATH [--rank R | --node N] [--to PATH] [--overwrite]",
    magic="%mesh ",
    section="Files",
    words=Words("PATH", "on the node, relative to the rank's directory; also a pattern: 'checkpoints/*.pt'", least=1),
    flags=(
        Flag("--rank", "whose directory and node (0 when not said); all: of each, into rank0/, rank1/, …", value="R"),
        Flag("--node", "the node, by number; all: of each, into node0/, node1/, …", value="N"),
        Flag("--to", "where it is to be here (the same relative path when not said)", value="PATH", completes="file"),
        Flag("--overwrite", "replace files here that differ"),
    ),
    examples=(("%mesh fetch checkpoints/last.pt --rank 4", ""), ("%mesh fetch /tmp/trace.json --to traces/", "")),
)
LS = Command(
    "ls",
    "what lies in a directory of a node",
    usage="[PATH] [--rank R | --node N]",
    magic="%mesh ",
    section="Files",
    words=Words("PATH", "on the node; the rank's directory when not said"),
    flags=(
        Flag("--rank", "whose directory and node (0 when not said)", value="R", kind="number"),
        Flag("--node", "the node, by number", value="N", kind="number"),
    ),
)
PIP = Command(
    "pip",
    "install packages into the environment of all nodes",
    usage="ARGUMENTS...",
    magic="%mesh ",
    section="Steer",
    words=Words("ARGUMENTS", "pip's own, as in a terminal", most=None, least=1, verbatim=True, completes="file"),
    notes="Runs once in each environment that differs from the others', on the first rank that has it.\n"
    "Modules that are imported already stay as they are until %mesh restart.",
    examples=(("%mesh pip install einops", ""), ("%mesh pip list", "what is there")),
)
INTERRUPT = Command(
    "interrupt",
    "stop what runs on every rank, and drop what waits; variables stay",
    magic="%mesh ",
    section="Steer",
    notes="Whoever submitted it; what waits is never started. Also frees ranks that hang in a collective.\n"
    "So are endpoints of actors, on all meshes of the reservation, and the messages that wait for them.\n"
    "Those that do not stop are named with where they hang; a second time, just those are killed and\n"
    "started anew.",
)
RESTART = Command(
    "restart",
    "fresh ranks under the same coordinates",
    usage="[-t T]",
    magic="%mesh ",
    section="Steer",
    flags=(_TARGETS, _MESH),
    notes="Variables and imports of restarted ranks are lost; the others keep theirs. Fresh ranks answer while\n"
    "the old processes still end, which takes two seconds at most; on GPUs these end first.",
    examples=(("%mesh restart -t 3", "rank 3 alone"),),
)
ON = Command(
    "on",
    "run every following cell on the mesh; %%local at a cell's top runs it in the kernel",
    usage="[-t T]",
    magic="%mesh ",
    section="Steer",
    flags=(_TARGETS, _MESH),
    notes="A cell that begins with %mesh is the kernel's; %mesh lines at the end of another come after its run.",
)
OFF = Command("off", "run cells in the kernel again", magic="%mesh ", section="Steer")
HELP = Command(
    "help",
    "this, or what SUBCOMMAND says about itself",
    usage="[SUBCOMMAND]",
    magic="%mesh ",
    section="Steer",
    words=Words("SUBCOMMAND", "reserve, attach, …; cell for %%mesh", completes="subcommand"),
)

MESH = CommandSet(
    "%mesh",
    "live ranks for this notebook",
    commands=(
        *(RESERVE, ATTACH, DETACH, RELEASE, REPLACE, GROW, SHRINK, STOP, EXTEND, SHARE, LIST),
        *(RUN, SH),
        *(PANEL, STATUS, STACKS, ACTORS, LOGS, DEBUG, DOCTOR),
        *(PUSH, PULL),
        *(SYNC, FETCH, LS),
        *(PIP, INTERRUPT, RESTART, ON, OFF, HELP),
    ),
    examples=(
        ("%mesh reserve dev --nodes 2 --procs 4", "8 CPU ranks, live until released"),
        ("%mesh reserve big --nodes 2 --gpus 8 --on slurm", "nodes of an engine: slurm, k8s, ray, ..."),
        ("%%mesh", "at the top of a cell: run it on every rank"),
        ("%%mesh -t 0 -o loss", "on rank 0; keep the last value in the kernel"),
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
        _NOBLOCK,
        Flag(
            "--out",
            "keep the values, a list by rank; with --noblock the Run",
            short="-o",
            value="NAME",
            completes="kernel_name",
        ),
        Flag(
            "--group-outputs",
            "as it came, rank after rank, or stdout, stderr, displays",
            value="HOW",
            choices=("order", "rank", "type"),
        ),
        Flag("--stream", "show output while the cell runs, or only at its end", negatable=True),
        Flag("--timeout", "raise TimeoutError after S seconds; the run goes on", value="S", kind="seconds"),
        Flag(
            "--on-error",
            "when a rank fails: wait for the others, or interrupt them after 0.5 s",
            value="HOW",
            choices=("wait", "abort"),
        ),
        _ON_BREAKPOINT,
        Flag("--sync", "first bring files that changed to the nodes, or not", negatable=True),
        Flag("--local", "run the cell in the kernel too"),
    ),
    notes="The cell's body is left as it is; {x} and $x are expanded in this line only.",
    examples=(
        ("%%mesh -t 0,2-3", "ranks 0, 2 and 3"),
        ("%%mesh -t hosts=0 --noblock -o run", "in the background; run.result() waits"),
        ("%%mesh --mesh judges", "on the ranks of another mesh of the reservation"),
    ),
)
