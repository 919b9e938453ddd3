"""What was meant by a word that a command does not have: words of other tools, and the nearest of its own. Pure.

`%mesh`, `%%mesh` and `monarch-nb` read their lines with these tables. What a command has itself keeps its meaning
there: `-n` of `logs` is its lines, and `-r` of `run` torchrun's `--redirects`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence

NAME = "NAME"
SCRIPT = "SCRIPT"
_PROGRAMS = (SCRIPT, "COMMAND")
"""What a command calls its words when they, and all that follows them, are another program's."""

COMMANDS: Mapping[str, str] = {
    "kill": "interrupt",
    "cancel": "interrupt",
    "abort": "interrupt",
    "ps": "list",
    "squeue": "list",
    "qstat": "list",
    "bjobs": "list",
    "sinfo": "status",
    "get": "pull",
    "gather": "pull",
    "put": "push",
    "submit": "run",
    "torchrun": "run",
    "python": "run",
    "salloc": "reserve",
}
"""Commands of other tools, and what they are called here."""

ANSWERS: Mapping[str, str] = {
    "resize": "grow adds nodes, shrink gives some back",
    "scancel": "interrupt stops what runs, release gives the nodes back",
    "bkill": "interrupt stops what runs, release gives the nodes back",
    "qdel": "interrupt stops what runs, release gives the nodes back",
    "srun": "run starts a script on the ranks; in a notebook, %mesh sh starts a command on each node",
    "sbatch": "run --noblock starts a script and goes on at once; its output is kept, and logs shows it",
    "tail": "logs --follow shows new lines as they come",
    "up": "a pool of this machine starts by itself, with reserve",
    "down": "release gives the nodes back; monarch-nb down, in a terminal, ends a pool of this machine",
    "pool": "in a terminal it is monarch-nb pool",
    "nvidia-smi": "in a notebook, %mesh sh nvidia-smi shows it for each node",
    "hostname": "in a notebook, %mesh sh hostname shows it for each node",
    "exit": "release gives the nodes back",
}
"""Commands of other tools, and of a terminal, that may mean several here."""

FLAGS: Mapping[str, tuple[str, ...]] = {
    "--rank": ("--targets",),
    "--ranks": ("--targets", "--rank"),
    "-r": ("--targets", "--rank"),
    "-t": ("--rank", "--time"),
    "--targets": ("--rank",),
    "--nproc-per-node": ("--procs",),
    "--ntasks-per-node": ("--nproc-per-node", "--procs"),
    "--ntasks": ("--procs",),
    "-n": ("--ntasks", "--procs"),
    "-np": ("--ntasks", "--procs"),
    "--procs": ("--nproc-per-node",),
    "--nnodes": ("--nodes",),
    "-N": ("--nnodes", "--nodes"),
    "--nodes": ("--nnodes",),
    "--gpus-per-node": ("--gpus",),
    "--name": (NAME,),
    "--job-name": (NAME,),
    "-J": (NAME,),
    "--tail": ("--lines",),
}
"""Flags of other tools, and of other commands: the first of these is meant that a command has. NAME is a word."""

MAGICS: Mapping[str, str] = {
    "%%px": "%%mesh runs a cell on the ranks",
    "%px": "%%mesh runs a cell on the ranks",
    "%autopx": "%mesh on sends each cell to the ranks",
}
"""Magics of ipyparallel, and what does that here."""

_SAID_OF = {"--procs": "CPU ranks on each node; --gpus is for ranks with a GPU each"}
"""What is said when a flag of another tool became this one, because it may mean something else there."""
_NO_MAGIC = re.compile(r"(?:Cell magic|Line magic function) `(%+\w+)` not found")
_OF_SLURM = re.compile("-[pAqCcw]|--(partition|account|qos|constraint|cpus-per-task|nodelist|gres|mem)")
_STARTERS = re.compile(r"torchrun|python[\d.]*|mpirun|mpiexec|srun|torch\.distributed\.(run|launch)")
_TORCHRUNS = re.compile(r"(.*/)?torchrun|torch\.distributed\.(run|launch)")
_ON_ALL_NODES = re.compile(r"(.*/)?(mpirun|mpiexec|srun)")
_PYTHONS_OWN = ("-u",)
_RANKS = re.compile(r"\d|\w+=")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELLS = re.compile(r"[\d&]?>>?(?!=).*|<|\|\|?|&&?|;")

_NEAR = 0.75
"""How much alike words are of which one may have been meant: more is guessed than helps below."""
_NOT_FAR = 0.5
_MOST = 6
"""So many flags are named for one that a command does not have."""


def as_here(words: Iterable[str], takes: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return the words of a line with the flags that the command has for those of other tools, and what to say of that.

    Args:
        takes: the command's flags in every spelling, each with whether a value must follow, and what its words are
            called. A SCRIPT, a COMMAND and all that follows are left as they are; what starts a script elsewhere is
            left out before it.

    Example:
        >>> as_here(["--name", "dev", "-N", "2"], {"--nodes": True, "NAME": False})
        (['dev', '--nodes', '2'], [])
        >>> as_here(["torchrun", "train.py", "-r", "1"], {"--targets": True, "SCRIPT": False})[0]
        ['train.py', '-r', '1']
    """
    pending, read, notes, starters = [*words][::-1], list[str](), list[str](), list[str]()
    is_program = any(each in takes for each in _PROGRAMS)
    while pending:
        word = pending.pop()
        if word.startswith("-") and word != "--":
            spelling, equals, value = word.partition("=")
            here = _flag_here(spelling, takes)
            if here == NAME:
                read += [value] * bool(equals)
                continue
            if starters and word in _PYTHONS_OWN:
                continue
            read.append(f"{here}{equals}{value}")
            if takes.get(here.replace("_", "-")) and not equals and pending:
                read.append(pending.pop())
            if here != spelling and (said := _SAID_OF.get(here)):
                notes.append(f"{spelling} is {here} here: {said}")
        elif word == "--" or (is_program and SCRIPT not in takes):
            return [*read, word, *pending[::-1]], notes
        elif not is_program:
            read.append(word)
        elif _STARTERS.fullmatch(os.path.basename(word)) and "--no-python" not in read:
            if read[-1:] in (["-m"], ["--module"]):
                read.pop()
            if _TORCHRUNS.fullmatch(word) and any(_ON_ALL_NODES.fullmatch(each) for each in starters):
                read = _of_torchruns(read)
            starters.append(word)
        elif _VARIABLE.fullmatch(word) and "--env" in takes:
            read += ["--env", word]
        else:
            read += [word, *pending[::-1]]
            break
    if starters:
        notes.append(f"{' '.join(starters)} is left out: run starts the script itself")
    return read, notes


def _of_torchruns(read: list[str]) -> list[str]:
    """Return what flags of srun and mpirun say whose processes are torchruns, one on each node."""
    kept = list[str]()
    pending = read[::-1]
    while pending:
        flag, equals, value = (word := pending.pop()).partition("=")
        if flag not in ("--ntasks", "--nproc-per-node"):
            kept.append(word)
            continue
        value = value if equals or not pending else pending.pop()
        if flag == "--ntasks" and not any(each.startswith("--nnodes") for each in read):
            kept += ["--nnodes", value]
    return kept


def _flag_here(spelling: str, takes: Mapping[str, bool]) -> str:
    """Return the flag that is meant; the spelling itself when that is one, or when nobody knows."""
    typed = spelling.replace("_", "-")
    if typed in takes:
        return spelling
    return next((each for each in FLAGS.get(typed, ()) if each in takes), spelling)


def of_a_magic(error: str) -> str:
    """Return what does here what a magic does elsewhere that IPython has not found; empty when nothing does.

    Example:
        >>> of_a_magic("Cell magic `%%px` not found.")
        '%%mesh runs a cell on the ranks'
    """
    missing = _NO_MAGIC.match(error)
    return MAGICS.get(missing[1], "") if missing else ""


def of_a_cell(word: str) -> str:
    """Return what is meant by a word behind `%%mesh`: ranks, or a reservation.

    Example:
        >>> of_a_cell("0-3"), of_a_cell("dev")
        ('-t 0-3 chooses ranks', '%mesh attach dev has cells go to that reservation, and -t T chooses ranks')
    """
    if _RANKS.match(word):
        return f"-t {word} chooses ranks"
    return f"%mesh attach {word} has cells go to that reservation, and -t T chooses ranks"


def of_a_shell(words: Sequence[str]) -> str:
    """Return why a script's line can not be meant so, when it has a word that only a shell reads, such as > or |."""
    word = next((word for word in words if _SHELLS.fullmatch(word)), "")
    if not word:
        return ""
    instead = "All output is kept: %mesh logs shows it, and `monarch-nb run … > FILE` in a terminal writes a file"
    if word == "&":
        instead = "--noblock goes on at once"
    return (
        f"is no shell: {word} would be an argument of {words[0]}. {instead}. To pass it to the script, write '{word}'"
    )


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return ": did you mean …?" with the one of `names` that may have been meant; empty when it may be none.

    Example:
        >>> suggestion("resreve", ["reserve", "release"])
        ': did you mean reserve?'
    """
    names = list(names)
    starting = [name for name in names if len(word.strip("-")) > 1 and name.startswith(word)]
    nearest = starting[:1] or difflib.get_close_matches(word, names, n=1, cutoff=_NEAR)
    return f": did you mean {nearest[0]}?" if nearest else ""


def flags_near(spelling: str, flags: Mapping[tuple[str, ...], bool], all_of_them: str) -> str:
    """Return what to say of a flag that a command does not have: which it has that are like it, six at most.

    Args:
        flags: those of the command, each in all its spellings, and whether it is listed.
        all_of_them: how all are listed, as in "%mesh help run".

    Example:
        >>> flags_near("-x", {("-t", "--targets"): True, ("--mesh",): True}, "%mesh help stacks")
        '; it has --targets (-t), --mesh'
    """
    long = {each: names for names in flags for each in names if each.startswith("--")}
    if spelling[:2] in (each for names in flags for each in names if each not in long):
        return f": write {spelling[:2]} {spelling[2:]}"
    if meant := suggestion(spelling, long):
        return meant
    shown = {each[2:]: names for each, names in long.items() if flags[names]}
    if _OF_SLURM.fullmatch(spelling) and "on" in shown:
        return f"; it is Slurm's, and goes after --: --on slurm -- {spelling} …"
    if len(shown) <= _MOST:
        near = list(shown)
    elif len(spelling) == 2:
        near = [each for each in shown if each[0] == spelling[1]][:_MOST]
    else:
        near = difflib.get_close_matches(spelling[2:], shown, n=_MOST, cutoff=_NOT_FAR)
    listed = ", ".join(_with_short(each, shown[each]) for each in near)
    if len(shown) <= _MOST:
        return f"; it has {listed or 'none'}"
    return f"; nearest: {listed}; {all_of_them} lists all" if listed else f"; {all_of_them} lists all"


def _with_short(name: str, spellings: Iterable[str]) -> str:
    short = next((each for each in spellings if not each.startswith("--")), "")
    return f"--{name} ({short})" if short else f"--{name}"
