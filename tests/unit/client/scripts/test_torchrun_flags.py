"""What torchrun's flags mean for ranks that are held: what is ignored is named."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.scripts.script import Script
from monarch_nb.client.scripts.torchrun_flags import (
    FLAGS,
    Given,
    Held,
    Launch,
    Node,
    asked_shape,
    held_by,
    held_in,
    of_all,
    read,
)
from monarch_nb.errors import UsageError

TWO_BY_FOUR = Held(nodes=2, ranks_per_node=4, reserve="%mesh reserve dev --replace")
ONE_GPU_NODE = Held(nodes=1, ranks_per_node=8, kind="gpus")


def test_every_flag_of_torchrun_is_known() -> None:
    from torch.distributed.run import get_args_parser

    ours = {flag.name: flag for flag in FLAGS}
    theirs = {action.option_strings[-1].replace("_", "-"): action for action in get_args_parser()._actions[1:-2]}
    assert theirs.keys() <= ours.keys()
    for name, action in theirs.items():
        assert bool(ours[name].value) == (action.nargs != 0), name


@pytest.mark.parametrize(
    "given", [{"nnodes": "2", "nproc_per_node": "4"}, {"nnodes": "2:8"}, {"nproc_per_node": "auto"}]
)
def test_what_is_held_anyway_is_confirmed(given: Given) -> None:
    assert read(given, {}, TWO_BY_FOUR) == Launch()


CONTRADICTIONS = [
    ({"nnodes": "4"}, "--nnodes 4: 2 nodes are held. Leave it out, or %mesh reserve dev --replace --nodes 4 --procs 4"),
    ({"nnodes": "3:4"}, "2 nodes are held.*--nodes 3"),
    ({"nnodes": "1"}, "--nnodes 1: 2 nodes are held. Leave it out, or -t hosts=0:1 chooses that many"),
    ({"nproc_per_node": "8"}, "has 4 CPU ranks on each node. Leave it out, or .* --nodes 2 --procs 8 holds that many"),
    (
        {"nproc_per_node": "gpu"},
        "4 CPU ranks on each node. Write cpu, or leave it out; %mesh reserve .* --gpus N holds",
    ),
    ({"nnodes": "4", "nproc_per_node": "1"}, "--nnodes 4: .*--nodes 4 --procs 1 holds that many"),
    ({"nnodes": "1", "nproc_per_node": "2"}, "--nnodes 1: .*-t hosts=0:1,procs=0:2 chooses that many"),
    ({"standalone": True}, "--standalone means one node, and 2 are held. Leave it out, or -t hosts=0:1 chooses"),
    ({"local_ranks_filter": "0,4"}, "each node has 4 CPU ranks, 0 to 3"),
]


@pytest.mark.parametrize(("given", "said"), CONTRADICTIONS, ids=str)
def test_what_contradicts_says_what_to_do(given: Given, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(given, {}, TWO_BY_FOUR)


@pytest.mark.parametrize(
    ("given", "ranks", "chosen"),
    [
        ({}, range(8), range(8)),
        ({"ntasks": "8"}, range(8), range(8)),
        ({"ntasks": "2"}, range(8), [0, 1]),
        ({"ntasks": "2", "nnodes": "2"}, range(8), [0, 4]),
        ({"ntasks": "6"}, range(8), [0, 1, 2, 4, 5, 6]),
        ({"ntasks": "1"}, [5, 6], [5]),
        ({"ntasks": "7"}, range(8), "-n 7: a script needs equally many .* 2 nodes × 4 CPU ranks. Write -n 6 or -n 8$"),
        ({"ntasks": "0"}, range(8), "-n 0: give a whole number of at least 1"),
        ({"ntasks": "16"}, range(8), "-n 16: .* are held. Leave it out, or %mesh .* --nodes 2 --procs 8 holds that"),
    ],
    ids=str,
)
def test_ranks_that_are_counted_in_all(given: Given, ranks: Sequence[int], chosen: Sequence[int] | str) -> None:
    held = held_in(ranks, 4, "procs", "%mesh reserve dev --replace")
    if isinstance(chosen, str):
        with pytest.raises(UsageError, match=chosen):
            of_all(given, ranks, 4, held)
        return
    found, note = of_all(given, ranks, 4, held)
    assert list(found) == list(chosen)
    assert bool(note) == (len(found) < len(ranks))


def test_no_shape_is_named_that_the_pool_can_not_have() -> None:
    full = replace(TWO_BY_FOUR, room=lambda nodes, each, kind: (nodes, each, kind) < (2, 8, "procs"))
    said = "Leave it out, or write --nnodes 2 --nproc-per-node 4: the pool has no room for 2 nodes × 8 CPU ranks$"
    with pytest.raises(UsageError, match=said):
        read({"nproc_per_node": "8"}, {}, full)


UNREADABLE = [
    ("nnodes", "two"),
    ("nnodes", "2:1"),
    ("nproc_per_node", "0"),
    ("max_restarts", "-1"),
    ("local_ranks_filter", "0,,1"),
]


@pytest.mark.parametrize(("key", "value"), UNREADABLE)
def test_a_value_that_can_not_be_read_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^--{key.replace('_', '-')} {value}: give .*$"):
        read({key: value}, {}, TWO_BY_FOUR)


def test_what_changes_nothing_is_said_once() -> None:
    given = {"rdzv_endpoint": "other:29400", "redirects": "3", "run_path": True, "log_dir": None, "numa_binding": False}
    launch = read(given, {}, TWO_BY_FOUR)
    assert launch == Launch(
        note="--redirects, --rdzv-endpoint, --run-path: ignored, because the ranks are there already"
    )


def test_what_is_honoured() -> None:
    given = {"max_restarts": "3", "rdzv_id": "job7", "role": "trainer", "local_ranks_filter": "0,2"}
    launch = read(given, {}, TWO_BY_FOUR)
    assert launch.max_restarts == 3
    assert launch.environment == {"TORCHELASTIC_RUN_ID": "job7", "ROLE_NAME": "trainer"}
    assert launch.shown == {0, 2}
    assert read({"module": True}, {}, TWO_BY_FOUR).module
    assert read({"no_python": True}, {}, TWO_BY_FOUR).executable


def test_one_node_of_gpus() -> None:
    for per_node in ("8", "gpu"):
        read({"standalone": True, "nnodes": "1:1", "nproc_per_node": per_node}, {}, ONE_GPU_NODE)
    with pytest.raises(UsageError, match=r"8 GPU ranks on each node.* --procs N"):
        read({"nproc_per_node": "cpu"}, {}, ONE_GPU_NODE)
    with pytest.raises(UsageError, match="-t gpus=0:4 chooses"):
        read({"nproc_per_node": "4"}, {}, ONE_GPU_NODE)
    with pytest.raises(UsageError, match="1 node is held"):
        read({"nnodes": "2"}, {}, ONE_GPU_NODE)


def test_variables_count_where_the_line_says_nothing() -> None:
    environment = {"PET_NNODES": "4", "PET_MAX_RESTARTS": "2", "PET_STANDALONE": "0", "PET_RDZV_ID": ""}
    assert read({"nnodes": "2"}, environment, TWO_BY_FOUR) == Launch(max_restarts=2)
    with pytest.raises(UsageError, match=r"^PET_NNODES=4 \(in the environment\): 2 nodes are held"):
        read({}, environment, TWO_BY_FOUR)
    with pytest.raises(UsageError, match=r"^PET_STANDALONE=1 \(in the environment\) means one node"):
        read({}, {"PET_STANDALONE": "1"}, TWO_BY_FOUR)
    with pytest.raises(UsageError, match=r"PET_STANDALONE=yes.* 1 or 0"):
        read({}, {"PET_STANDALONE": "yes"}, TWO_BY_FOUR)
    assert read({}, {"PET_MODULE": "1"}, TWO_BY_FOUR).module


def test_a_pod_of_kubeflows_needs_no_flags() -> None:
    held = Held(nodes=1, ranks_per_node=4)
    environment = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29500",
    }
    assert read({}, environment, held) == Launch()


def test_a_script_is_made_of_it() -> None:
    launch = read({"max_restarts": "2", "rdzv_id": "job7"}, {}, TWO_BY_FOUR)
    assert launch.script("train.py", ["-x"], beside=True) == Script(
        "train.py", ("-x",), beside=True, max_restarts=2, environment={"TORCHELASTIC_RUN_ID": "job7"}
    )


def mesh_of(ranks: tuple[int, ...], gpus: int = 0) -> Any:
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(rank // 4, []).append(rank)
    core = SimpleNamespace(by_node=lambda _: by_node, ranks_per_node=4)
    return SimpleNamespace(ranks=ranks, core=core, reservation=SimpleNamespace(gpus=gpus))


def test_what_is_held_is_what_was_chosen() -> None:
    held = held_by(mesh_of((2, 3, 6, 7), gpus=4), "monarch-nb run")
    assert (held.nodes, held.ranks_per_node, held.kind) == (2, 2, "gpus")
    launch = read({"local_ranks_filter": "0"}, {}, held)
    assert launch.shown_ranks(mesh_of((2, 3, 6, 7))) == {2, 6}
    assert Launch().shown_ranks(mesh_of((2, 3))) is None


@pytest.mark.parametrize(
    ("given", "gpus", "shape"),
    [
        ({}, 8, None),
        ({"max_restarts": "2", "rdzv_backend": "c10d"}, 8, None),
        ({"nproc_per_node": "4"}, 0, (1, "procs", 4)),
        ({"nproc_per_node": "4"}, 8, (1, "gpus", 4)),
        ({"nproc_per_node": "16"}, 8, (1, "procs", 16)),
        ({"nnodes": "2"}, 0, (2, "procs", 1)),
        ({"nnodes": "1:4", "nproc_per_node": "gpu"}, 8, (1, "gpus", 8)),
        ({"standalone": True, "nproc_per_node": "auto"}, 0, (1, "procs", 12)),
        ({"nproc_per_node": "cpu"}, 8, (1, "procs", 12)),
        ({"ntasks": "4", "nnodes": "2"}, 0, (2, "procs", 2)),
        ({"ntasks": "16"}, 8, (2, "gpus", 8)),
        ({"ntasks": "25"}, 0, (1, "procs", 25)),
    ],
)
def test_where_nothing_is_held_a_line_of_torchrun_says_what_to_reserve(
    given: Given, gpus: int, shape: tuple[int, str, int] | None
) -> None:
    assert asked_shape(given, {}, lambda: Node(procs=12, gpus=gpus, nodes=2)) == shape


def test_the_environment_says_it_too_and_what_is_not_there_is_refused() -> None:
    environment = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3"}
    assert asked_shape({}, environment, lambda: Node(procs=12, gpus=0)) == (2, "procs", 3)
    with pytest.raises(UsageError, match=r"--nproc-per-node gpu: there is no GPU\. Write cpu, or how many"):
        asked_shape({"nproc_per_node": "gpu"}, {}, lambda: Node(procs=12, gpus=0))
