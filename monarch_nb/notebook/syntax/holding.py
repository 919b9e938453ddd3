"""What the subcommands of `%mesh` accept that hold nodes: declarations only."""

from __future__ import annotations

from monarch_nb.notebook.syntax.command_line import Command, Flag, Words

NOBLOCK = Flag("--noblock", "go on at once; output keeps arriving here", short="-a")
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
        Flag("--pool", "the pool to take them from (the local one, which is started when it is not up)", value="POOL"),
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
        NOBLOCK,
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
