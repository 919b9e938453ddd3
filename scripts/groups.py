"""Choose what `make test` adds from the night: the groups whose files differ from those of the last full run.

    python scripts/groups.py integration     prints options for pytest, and why on stderr
    python scripts/groups.py --record        says that everything has passed at HEAD: `make test-all` does

When in doubt (no record, a commit that this clone does not have), all of it.
"""

import fnmatch
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "full_run.toml"

LAUNCHERS = ("monarch_nb/provision/launchers.py", "monarch_nb/provision/jobs.py", "tests/integration/ways.py")
SAVES = ("monarch_nb/worker/saving/*", "monarch_nb/worker/autosaves/*", "monarch_nb/client/saving/*")
MONARCH = ("monarch_nb/*/monarch/*", "monarch_nb/integrations/monarch.py", "monarch_nb/actor/*", "monarch_nb/rdma/*")
HOSTS = ("monarch_nb/trust/*", "monarch_nb/rpc/*", "monarch_nb/allocator/leases/*", "monarch_nb/client/reservations/*")
FILES = ("monarch_nb/files/*", "monarch_nb/allocator/files/*", "monarch_nb/client/files/*")
LOGS = ("monarch_nb/allocator/logs/*", "monarch_nb/allocator/runs/*", "monarch_nb/client/logs/*")
SESSIONS = ("monarch_nb/allocator/sessions/*", "monarch_nb/allocator/recovery/*", "monarch_nb/client/connections/*")
TREE = ("monarch_nb/branches/*", "monarch_nb/spreading.py", "monarch_nb/allocator/sessions/*")
PANEL = ("labextension/src/*", "monarch_nb/panel/*", "monarch_nb/server/*")

GROUPS = {
    "integration/night/kubernetes": ("monarch_nb/provision/kubernetes/*", "deploy/*", *LAUNCHERS),
    "integration/night/lightning": ("monarch_nb/provision/lightning.py", *LAUNCHERS),
    "integration/night/ray": ("monarch_nb/provision/ray/*", *LAUNCHERS),
    "integration/night/sky": ("monarch_nb/provision/skypilot/*", *LAUNCHERS),
    "integration/night/slurm": ("monarch_nb/provision/slurm.py", "notebooks/slurm.ipynb", *LAUNCHERS),
    "integration/night/ssh": ("monarch_nb/provision/ssh.py", "monarch_nb/provision/remote/*", *LAUNCHERS),
    "integration/night/warden": ("monarch_nb/warden/*", "monarch_nb/allocator/gateway/*", "deploy/*"),
    "integration/night/faults": SESSIONS,
    "unit/cluster/night": (*SESSIONS, "monarch_nb/allocator/leases/*", "monarch_nb/client/pools/*"),
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
    "integration/night/test_scaling.py": ("monarch_nb/*/scaling/*",),
    "integration/night/test_gpu_leases.py": ("monarch_nb/allocator/leases/*", "monarch_nb/allocator/readings/*"),
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


def chosen_groups(changed: list[str]) -> dict[str, str]:
    """Return the groups that these files belong to, each with the first of the files."""
    found: dict[str, str] = {}
    for group, patterns in GROUPS.items():
        for file in changed:
            if file.startswith(f"tests/{group}") or any(fnmatch.fnmatch(file, each) for each in patterns):
                found.setdefault(group, file)
    return found


def changed_files() -> list[str] | None:
    """Return the files that differ from those of the last full run; None when that can not be said."""
    try:
        commit = tomllib.loads(RECORD.read_text())["commit"]
        changed = _git("diff", "--name-only", "--no-renames", commit)
        return [*changed, *_git("ls-files", "--others", "--exclude-standard")]
    except (OSError, KeyError, subprocess.CalledProcessError):
        return None


def record() -> None:
    """Write down that everything has passed at HEAD."""
    if changed := _git("status", "--porcelain", "--", ":!tests/durations.toml"):
        sys.exit(f"Not recorded as a full run, because files differ from HEAD: {', '.join(changed)}")
    head = _git("rev-parse", "HEAD")[0]
    comment = "# The last `make test-all` that passed: scripts/groups.py compares with it.\n"
    RECORD.write_text(f'{comment}commit = "{head}"\non = {time.strftime("%F")}\n')
    print(f"Recorded in {RECORD.relative_to(ROOT)}: commit it, with tests/durations.toml.")


def main(arguments: list[str]) -> None:
    """Print the options that add groups, or record a full run."""
    if arguments == ["--record"]:
        return record()
    changed = changed_files()
    if changed is None:
        print("The last full run is not known here: with all tests of the night", file=sys.stderr)
        return print("--night tests")
    groups = {each: why for each, why in chosen_groups(changed).items() if each.startswith(arguments[0])}
    for each, why in groups.items():
        print(f"With {each}: {why} has changed since the last full run", file=sys.stderr)
    return print(*(f"--night tests/{each}" for each in groups))


def _git(*arguments: str) -> list[str]:
    run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


if __name__ == "__main__":
    main(sys.argv[1:])
