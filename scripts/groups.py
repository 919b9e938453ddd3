"""Choose what `make test` adds from the night: the groups whose files differ from those of the last full run.

    python scripts/groups.py integration     prints options for pytest, and why on stderr
    python scripts/groups.py --begin         before all tests: notes HEAD, which must be all that there is
    python scripts/groups.py --record        after them: says that everything has passed at that commit

When in doubt (no record, a commit that this clone does not have, a file of which nothing is said here), all of it.
"""

import argparse
import fnmatch
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "full_run.toml"
BEGUN = ROOT / "build" / "full_run"

LAUNCHERS = (
    "monarch_nb/provision/launchers.py",
    "monarch_nb/provision/jobs.py",
    "monarch_nb/provision/helpers.py",
    "tests/integration/ways.py",
)
SAVES = ("monarch_nb/worker/saving/*", "monarch_nb/worker/autosaves/*", "monarch_nb/client/saving/*")
MONARCH = ("monarch_nb/*/monarch/*", "monarch_nb/integrations/monarch.py", "monarch_nb/actor/*", "monarch_nb/rdma/*")
HOSTS = (
    "monarch_nb/trust/*",
    "monarch_nb/rpc/*",
    "monarch_nb/allocator/reservations/*",
    "monarch_nb/client/reservations/*",
)
FILES = ("monarch_nb/files/*", "monarch_nb/allocator/files/*", "monarch_nb/client/files/*")
LOGS = ("monarch_nb/allocator/logs/*", "monarch_nb/allocator/runs/*", "monarch_nb/client/logs/*")
SESSIONS = ("monarch_nb/allocator/runs/*", "monarch_nb/allocator/memory/*", "monarch_nb/client/connections/*")
TREE = ("monarch_nb/branches/*", "monarch_nb/allocator/runs/*", "monarch_nb/client/connections/session.py")
PANEL = ("labextension/src/*", "monarch_nb/panel/*", "monarch_nb/server/*")

GROUPS = {
    "integration/night/kubernetes": ("monarch_nb/provision/kubernetes/*", "deploy/*", *LAUNCHERS),
    "integration/night/lightning": ("monarch_nb/provision/lightning.py", *LAUNCHERS),
    "integration/night/ray": ("monarch_nb/provision/ray/*", *LAUNCHERS),
    "integration/night/sky": ("monarch_nb/provision/skypilot/*", *LAUNCHERS),
    "integration/night/slurm": ("monarch_nb/provision/slurm.py", "notebooks/slurm.ipynb", *LAUNCHERS),
    "integration/night/ssh": ("monarch_nb/provision/ssh.py", "monarch_nb/provision/remote/*", *LAUNCHERS),
    "integration/night/faults": SESSIONS,
    "unit/cluster/night": (
        *SESSIONS,
        "monarch_nb/allocator/reservations/*",
        "monarch_nb/client/pools/*",
        "tests/cluster/*",
    ),
    "integration/hosts/night": (*HOSTS, *SESSIONS, "monarch_nb/provision/hosts.py"),
    "integration/files/night": (
        "monarch_nb/files/*",
        "monarch_nb/allocator/files/*",
        "monarch_nb/client/files/*",
        *SAVES,
    ),
    "integration/night/test_accelerate.py": ("monarch_nb/integrations/accelerate.py",),
    "integration/night/test_lightning.py": ("monarch_nb/integrations/lightning.py",),
    "integration/night/test_loggers.py": ("monarch_nb/integrations/*",),
    "integration/night/test_monarch.py": MONARCH,
    "integration/night/test_monarch_kills.py": MONARCH,
    "integration/night/test_grpo_notebook.py": (*MONARCH, "notebooks/grpo.ipynb"),
    "integration/night/test_save_kills.py": SAVES,
    "integration/night/test_ipykernels.py": ("monarch_nb/notebook/*",),
    "integration/night/test_environments.py": ("monarch_nb/worker/pip.py", "monarch_nb/worker/environment_report.py"),
    "integration/night/test_titan_notebook.py": ("notebooks/titan*", "monarch_nb/notebook/output/*"),
    "integration/night/test_inside_notebook.py": ("notebooks/inside.ipynb", "monarch_nb/worker/instruments/*"),
    "integration/night/test_debugging_notebook.py": ("notebooks/debugging.ipynb", "monarch_nb/*/debug/*"),
    "integration/night/test_more_notebooks.py": ("notebooks/develop.ipynb", "notebooks/[al]*.ipynb"),
    "integration/night/test_tree.py": TREE,
    "integration/night/test_tree_floods.py": TREE,
    "integration/night/test_many_runs.py": LOGS,
    "integration/night/test_log_limit.py": LOGS,
    "integration/night/test_scaling.py": ("monarch_nb/client/meshes/scaling.py", "monarch_nb/notebook/*scaling.py"),
    "integration/night/test_gpu_leases.py": ("monarch_nb/allocator/reservations/*", "monarch_nb/allocator/readings/*"),
    "integration/night/test_people.py": (
        "monarch_nb/allocator/reservations/gpu_locks.py",
        "monarch_nb/provision/local.py",
    ),
    "integration/night/test_room.py": ("monarch_nb/provision/local.py",),
    "integration/night/test_release_unserved.py": ("monarch_nb/client/reservations/*", "monarch_nb/provision/local.py"),
    "integration/night/test_shared_storage.py": ("monarch_nb/client/reservations/*",),
    "integration/night/test_training_apart.py": ("monarch_nb/worker/groups/*",),
    "e2e/night/test_site.py": ("docs/*",),
    "e2e/night/test_installed.py": ("pyproject.toml", "jupyter-config/*", "labextension/package.json"),
    "e2e/night/test_collaboration.py": PANEL,
    "e2e/night/test_many.py": PANEL,
    "e2e/night/test_sleeping.py": PANEL,
    "e2e/night/test_access.py": ("labextension/*",),
    "e2e/night/test_other_language.py": ("labextension/src/lab/*",),
    "e2e/night/test_ways.py": (*LAUNCHERS, "labextension/src/*"),
}
"""Folders and files of the night, and which files of the product they are about. Their own files count, too."""

GATE = (
    *(f"monarch_nb/allocator/{each}" for each in ("*.py", "api/*", "mail/*", "processes/*", "state/*")),
    *(f"monarch_nb/client/{each}/*" for each in ("actors", "comparing", "curves", "doctor", "flames", "instruments")),
    *(f"monarch_nb/client/{each}/*" for each in ("memory", "meshes", "runs", "scripts", "top")),
    *(f"monarch_nb/worker/{each}/*" for each in ("control",)),
    *(f"monarch_nb/worker/{each}" for each in ("*.py", "runs/*", "shell/*")),
    "monarch_nb/cli/*",
    "monarch_nb/client/*.py",
    "monarch_nb/ground/*",
    "monarch_nb/lines/*",
    "monarch_nb/provision/*.py",
    "monarch_nb/*.py",
    "tests/[adfs]*.toml",
    "tests/unit/*",
    "tests/integration/test_*",
    "tests/strangers/*",
    *(f"tests/integration/{each}/*" for each in ("actors", "files", "lsf", "mail", "worker")),
    "tests/e2e/test_*",
    "tests/gpu/*",
)
"""What `make test` says enough about. A file of code that is neither here nor above adds all of the night."""
IN_DOUBT = ("monarch_nb/config.py", "monarch_nb/proto/*")
"""What all of the night may depend on, although GATE has its folder."""
CODE = ("monarch_nb/*", "protos/*", "tests/*", "pyproject.toml")


def chosen_groups(changed: list[str]) -> dict[str, str]:
    """Return the groups that these files belong to, each with the first of the files."""
    found: dict[str, str] = {}
    for group, patterns in GROUPS.items():
        for file in changed:
            if file.startswith(f"tests/{group}") or _matches(file, patterns):
                found.setdefault(group, file)
    return found


def doubtful(changed: list[str]) -> str | None:
    """Return the first of these files that may concern all of the night."""
    for file in changed:
        is_known = bool(chosen_groups([file])) or _matches(file, GATE)
        if _matches(file, IN_DOUBT) or (_matches(file, CODE) and not is_known):
            return file
    return None


def changed_files() -> list[str] | None:
    """Return the files that differ from those of the last full run; None when that can not be said."""
    try:
        commit = tomllib.loads(RECORD.read_text())["commit"]
        changed = _git("diff", "--name-only", "--no-renames", commit)
        return [*changed, *_git("ls-files", "--others", "--exclude-standard")]
    except (OSError, KeyError, tomllib.TOMLDecodeError, subprocess.CalledProcessError):
        return None


def begin() -> None:
    """Note the commit that all tests are about to run on."""
    BEGUN.parent.mkdir(exist_ok=True)
    BEGUN.write_text(_head())


def record() -> None:
    """Write down that everything has passed at the commit that was noted."""
    if (head := _head()) != BEGUN.read_text():
        sys.exit(f"Not recorded as a full run, because it began at {BEGUN.read_text()} and ended at {head}")
    comment = "# The last `make test-all` that passed: scripts/groups.py compares with it.\n"
    RECORD.write_text(f'{comment}commit = "{head}"\non = {time.strftime("%F")}\n')
    print(f"Recorded in {RECORD.relative_to(ROOT)}: commit it, with tests/durations.toml.")


def options(kind: str) -> str:
    """Return the options that add groups to the tests of a kind, and print why."""
    changed = changed_files()
    why = "it is not known here when all of it ran last" if changed is None else ""
    if changed and (file := doubtful(changed)):
        why = f"{file} has changed since the last full run, and may concern any of it"
    if changed is None or why:
        print(f"With all tests of the night: {why}", file=sys.stderr)
        return "--night tests"
    groups = {each: file for each, file in chosen_groups(changed).items() if each.startswith(f"{kind}/")}
    for each, file in groups.items():
        print(f"With {each}: {file} has changed since the last full run", file=sys.stderr)
    return " ".join(f"--night tests/{each}" for each in groups)


def main() -> None:
    """Print the options that add groups, or record a full run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("kind", nargs="?", choices=("unit", "integration", "e2e"))
    what.add_argument("--begin", action="store_true")
    what.add_argument("--record", action="store_true")
    chosen = parser.parse_args()
    if chosen.kind:
        print(options(chosen.kind))
    else:
        begin() if chosen.begin else record()


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a pattern matches: what ends with `/*` means all below that folder."""
    return any(
        fnmatch.fnmatch(file, each) and (each.endswith("/*") or file.count("/") == each.count("/")) for each in patterns
    )


def _head() -> str:
    """Return the commit, if there is nothing else."""
    if changed := _git("status", "--porcelain", "--", ":!tests/durations.toml"):
        sys.exit(f"A full run is of one commit, and files differ from HEAD: {', '.join(changed)}. Commit them first.")
    return _git("rev-parse", "HEAD")[0]


def _git(*arguments: str) -> list[str]:
    run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


if __name__ == "__main__":
    main()
