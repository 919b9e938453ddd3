"""Of `--as-users` what only a real GPU shows: accounts open those that they have reserved, and no others."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator

import pytest

from integration.night.warden.as_users import Node, node_of_people

OPENED = """
import errno, glob
opened = {}
for path in sorted(glob.glob("/dev/nvidia[0-9]*")) + ["/dev/nvidiactl"]:
    try:
        open(path, "rb+", buffering=0).close()
        opened[path] = ""
    except OSError as error:
        opened[path] = errno.errorcode[error.errno]
opened
"""
SUM = "import torch; (float(torch.ones(3, device=device).sum()), torch.cuda.device_count())"
RESERVES = f"""
import sys
gpu = nb.reserve("gpu", gpus=1, preload=[])
print(gpu.mesh.run({OPENED!r}).values[0], gpu.mesh.run({SUM!r}).values[0], flush=True)
sys.stdin.readline()
gpu.release()
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_of_people(imports="torch") as made:
        if "can not be fenced" in made.log.read_text() or "--warden=--without-cgroups" in made.words:
            pytest.skip("nothing fences GPUs on this machine: it has no cgroup v2, or its kernel takes no programs")
        yield made


def test_a_rank_opens_its_reservations_gpu_and_nobody_elses(node: Node) -> None:
    with node.people["bob"].begin(f"import monarch_nb as nb\n{RESERVES}") as bob:
        assert bob.stdout is not None
        his = bob.stdout.readline()
        try:
            others = literal_eval(node.cell("mallory", OPENED))
            again = node.run("bob", f"print(nb.attach('gpu').mesh.run({SUM!r}).values[0])")
        finally:
            _, errors = bob.communicate("\n", timeout=60)
    assert his.endswith("(3.0, 1)\n"), (his, errors, node.log.read_text())
    opened = literal_eval(his[: his.index("}") + 1])
    assert [path for path, error in opened.items() if not error] == [*list(opened)[:1], "/dev/nvidiactl"]
    assert others.pop("/dev/nvidiactl") == ""
    assert set(others.values()) == {"EPERM"}
    assert again == ["(3.0, 1)"]
