"""What `doctor` says: pure comparison and rendering."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import pytest

from monarch_nb.client.doctor.diagnosis import Diagnosis, Difference, NodeReport, diagnose, name_nodes
from monarch_nb.worker.environment_report import Environment

GIB = 1 << 30
HERE = Environment(
    python="3.11.7",
    torch="2.13.0+cpu",
    packages={"numpy": "2.4.0", "einops": "0.8.0"},
    free_bytes={"/node": 100 * GIB, "/data": 900 * GIB},
    shared_memory_bytes=8 * GIB,
    open_files=65536,
    cpus=4,
)


def node(number: int, error: str = "", blind: str | None = "", clock_ahead_s: float = 0.01, **other: Any) -> NodeReport:
    environment = replace(HERE, **other)
    version = "0.1.0"
    return NodeReport(f"node{number}", environment, error, version, clock_ahead_s, "/node", blind)


def found(
    *nodes: NodeReport,
    here: Environment = HERE,
    shared: str = "",
    directory: str = "/home/me/project",
    copied: Container[str] = (),
) -> Diagnosis:
    return diagnose("dev", here, "0.1.0", nodes, shared=shared, directory=directory, copied=copied)


def only(diagnosis: Diagnosis) -> Difference:
    (difference,) = diagnosis.differences
    return difference


def test_all_is_well() -> None:
    diagnosis = found(node(0), node(1), shared="/data")
    assert diagnosis.healthy
    lines = str(diagnosis).splitlines()
    assert lines[0] == "dev"
    assert lines[1].removeprefix("fine: ").split(", ") == [
        "monarch_nb 0.1.0",
        "Python 3.11.7",
        "torch 2.13.0+cpu",
        "2 imported packages",
        "clocks",
        "disk of the node's directory 107 GB free",
        "shared storage 966 GB free",
        "/dev/shm 8.6 GB",
        "65,536 open files",
        "4 CPUs",
        "/home/me/project seen by all",
    ]
    assert len(lines) == 2


def test_packages_that_differ_are_folded_and_installed_with_one_command() -> None:
    old, none = {"numpy": "1.26.4", "einops": None}, {"numpy": "2.4.0", "einops": None}
    diagnosis = found(node(0), node(1, packages=old), node(2, packages=old), node(3, packages=none))
    assert diagnosis.differences == (
        Difference("numpy", "2.4.0", (("1.26.4", ("node1", "node2")),)),
        Difference("einops", "0.8.0", (("none", ("node1", "node2", "node3")),)),
    )
    assert str(diagnosis).splitlines()[1:4] == [
        "  numpy   2.4.0  1.26.4 on node[1-2]",
        "  einops  0.8.0  none on node[1-3]",
        "%mesh pip install numpy==2.4.0 einops==0.8.0",
    ]
    assert "imported package" not in "".join(diagnosis.fine)


def test_a_package_of_a_directory_can_not_be_installed_by_its_version() -> None:
    here = replace(HERE, sources={"einops": "/home/me/einops"})
    diagnosis = found(node(0, packages={"numpy": "2.4.0"}), here=here)
    assert diagnosis.advice == ("einops is not published: %mesh sync --add /home/me/einops brings its source",)


def test_torch_is_compared_by_version_and_installed_from_the_index_of_its_build() -> None:
    diagnosis = found(node(0), node(1, torch="2.12.0+cpu"))
    assert only(diagnosis) == Difference("torch", "2.13.0", (("2.12.0", ("node1",)),))
    assert diagnosis.advice == ("%mesh pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",)
    gpu: dict[str, Any] = {"torch": "2.12.0+cu128", "torch_cuda": "12.8", "driver": "570.1", "cuda": "12.8"}
    assert found(node(0, **gpu)).advice == ("%mesh pip install torch==2.13.0",), "not of a kernel without a GPU"


def test_what_is_off_with_a_new_torch_is_said_once_for_all_nodes() -> None:
    lacks = ["torch 2.99 has no _world: interrupts are off"]
    told = only(found(node(0, torch_lacks=lacks), node(1, torch_lacks=lacks), node(2)))
    assert told.nodes == ((lacks[0], ("node0", "node1")),)


def test_a_kernel_without_a_gpu_may_have_another_build_of_torch_than_its_nodes() -> None:
    gpu: dict[str, Any] = {"torch": "2.13.0+cu128", "torch_cuda": "12.8", "driver": "570.1", "cuda": "12.8"}
    assert found(node(0, **gpu), node(1, **gpu)).healthy
    with_gpu = replace(HERE, driver="570.1", cuda="12.8")
    assert only(found(node(0, **gpu), here=with_gpu)).what == "torch is built for CUDA"
    mixed = found(node(0, **gpu), node(1, **gpu), node(2, **gpu | {"torch_cuda": "12.6"}))
    assert only(mixed).nodes == (("12.8", ("node0", "node1")), ("12.6", ("node2",)))


def test_gpus_that_torch_can_not_use() -> None:
    gpu: dict[str, Any] = {"driver": "550.1", "cuda": "12.4"}
    assert only(found(node(0, **gpu))).nodes == (("torch is built for the CPU", ("node0",)),)
    newer = only(found(node(0, **gpu, torch_cuda="13.0")))
    assert newer.nodes == (("torch needs CUDA 13.0, the driver has 12.4", ("node0",)),)
    assert found(node(0, **gpu, torch_cuda="12.8")).healthy, "minor versions work together"


@pytest.mark.parametrize(
    ("version", "advice"), [("3.11.9", "no harm"), ("3.12.1", "functions can not travel"), ("3.10.0", "can not travel")]
)
def test_python(version: str, advice: str) -> None:
    difference = only(found(node(0), node(1, python=version)))
    assert (difference.what, difference.nodes) == ("Python", ((version, ("node1",)),))
    assert advice in difference.advice


def test_clocks() -> None:
    assert found(node(0, clock_ahead_s=0.9)).healthy
    difference = only(found(node(0), node(1, clock_ahead_s=75.2), node(2, clock_ahead_s=-3600.0)))
    assert difference.nodes == (("75 s ahead", ("node1",)), ("3,600 s behind", ("node2",)))


@pytest.mark.parametrize(
    ("facts", "what", "told"),
    [
        ({"free_bytes": {"/node": GIB // 2}}, "disk of the node's directory", "537 MB free"),
        ({"shared_memory_bytes": 64 << 20}, "/dev/shm", "67 MB"),
        ({"open_files": 1024}, "open files", "1,024"),
        ({"free_bytes": {"/node": 100 * GIB, "/data": None}}, "shared storage", "can not be read"),
    ],
)
def test_what_is_short(facts: dict[str, Any], what: str, told: str) -> None:
    difference = only(
        found(node(0, open_files=None), node(1, **facts), shared="/data" if "/data" in str(facts) else "")
    )
    assert (difference.what, difference.nodes) == (what, ((told, ("node1",)),)), "no limit is no small one"
    assert difference.advice


def test_a_node_that_does_not_answer_is_named_and_the_others_are_compared() -> None:
    diagnosis = found(node(0), node(1, error="node1 does not answer"), node(2, python="3.12.0"))
    assert [difference.what for difference in diagnosis.differences] == ["no answer", "Python"]
    error = "node0 does not answer; is its host up, and its allocator running?"
    assert found(node(0, error=error)).rows()[0][2] == "node0: is its host up, and its allocator running", "once"
    behind_a_firewall = replace(node(1, error="timed out"), advice="let port 7878 pass")
    assert found(node(0), behind_a_firewall).rows()[0] == ["no answer", "", "node1: timed out", "let port 7878 pass"]
    assert found(node(0, error="gone")).fine == ()


NO_STORAGE = "no storage that all nodes see: --shared DIR at reserve names it"


def test_files_that_all_nodes_see_are_storage_that_all_nodes_see() -> None:
    for blind in ("", None):  # evidence can not be had from everywhere: the reservation knows it
        diagnosis = found(node(0, blind=blind), node(1, blind=blind))
        assert "/home/me/project seen by all" in diagnosis.fine
        assert diagnosis.notes == ()


def test_files_that_are_copied() -> None:
    blind = node(1, blind="No such file")
    assert found(node(0), blind, copied=["node1"]).notes == (
        "/home/me/project is copied to node1 before each cell",
        NO_STORAGE,
    )
    both = found(node(0, blind="No such file"), blind, copied=["node0", "node1"], shared="/data")
    assert both.notes == ("/home/me/project is copied to every node before each cell",)
    assert both.healthy


def test_files_that_a_node_sees_no_longer() -> None:
    diagnosis = found(node(0), node(1, blind="No such file"))
    difference = only(diagnosis)
    assert (difference.what, difference.here) == ("the ranks' files", "/home/me/project")
    assert difference.nodes == (("not as they are here", ("node1",)),)
    assert found(node(0, blind=None), directory="").notes == (NO_STORAGE,), "without files"


def test_names() -> None:
    for names, told in (
        (["node0", "node1", "node2"], "every node"),
        (["node1"], "node1"),
        (["node0", "node2"], "node[0,2]"),
        (["gpu-a", "node1", "node07"], "node1, gpu-a, node07"),
    ):
        assert name_nodes(names, ["node0", "node1", "node2"]) == told
    assert name_nodes(["node0"], ["node0"]) == "node0", "not every node"


def test_what_we_may_not_have_looked_at_is_said_and_nothing_made_up_of_it() -> None:
    """Of these nodes their own python is known, and their own disk."""
    other = {"python": "3.9.1", "torch": None, "packages": {}, "free_bytes": {"/node": 100 * GIB}}
    blinded = [replace(node(number, **other), own_python=True, unseen="/x/python; ask alice") for number in (0, 1)]
    diagnosis = found(*blinded, shared="/data")
    assert diagnosis.healthy
    assert diagnosis.fine[:3] == ("monarch_nb 0.1.0", "clocks", "disk of the node's directory 107 GB free")
    assert not [each for each in diagnosis.fine if "shared storage" in each or "packages" in each]
    said = "because only users who may run cells there can ask for it: /x/python; ask alice"
    assert diagnosis.notes == (f"not looked at on every node, {said}",)
    mixed = found(node(0, torch="2.12.0"), blinded[1], shared="/data")
    assert only(mixed).nodes == (("2.12.0", ("node0",)),)
    assert "shared storage 966 GB free" in mixed.fine
    assert mixed.notes == (f"not looked at on node1, {said}",)
