"""A pool in a container that may use less of the machine's processors than there are."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def one_cpu() -> Iterator[Path]:
    """A cgroup that may use one processor, of the version that this machine has."""
    version_1 = (CGROUPS / "cpu/cpu.cfs_quota_us").exists()
    group = CGROUPS / ("cpu" if version_1 else "") / f"mnb-quota-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("cpu.cfs_quota_us" if version_1 else "cpu.max")).write_text("100000")
    except OSError:
        pytest.skip("no cpu controller on this machine can be written")
    yield group
    group.rmdir()


def test_a_quota_is_what_the_machine_has(one_cpu: Path, pool_home: Path) -> None:
    joined = ["sh", "-c", f'echo $$ > {one_cpu}/cgroup.procs && exec "$@"', "sh"]

    def said(*words: str) -> str:
        return subprocess.check_output([*joined, sys.executable, "-m", "monarch_nb.cli.main", *words], text=True)

    said("up")
    assert "0 of 1" in said("status"), "one rank per processor"
    dev = monarch_nb.reserve("dev", procs=1)
    threads = "import os, torch\nos.environ['OMP_NUM_THREADS'], torch.get_num_threads()"
    assert dev.mesh.run(threads).values == [("1", 1)]
    dev.release()
    assert ", 1 CPU" in said("doctor")
    said("down")
