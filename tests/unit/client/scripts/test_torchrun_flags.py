"""What torchrun's flags mean for ranks that are held: nothing is ignored in silence."""

from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from monarch_nb.client.scripts.script import Script
from monarch_nb.client.scripts.torchrun_flags import FLAGS, Given, Held, Launch, held_by, read
from monarch_nb.errors import UsageError

OWN_STORE = "each script has a store of its own, at a free port of its first node"
TWO_BY_FOUR = Held(nodes=2, ranks_per_node=4, reserve="%mesh reserve dev --replace")
ONE_GPU_NODE = Held(nodes=1, ranks_per_node=8, kind="gpus")


def test_the_table_has_every_flag_of_torchrun_and_no_other() -> None:
    import torch
    from torch.distributed.run import get_args_parser

    installed = Version(torch.__version__)
    ours = {flag.name: flag for flag in FLAGS if not flag.since or installed >= Version(flag.since)}
    theirs = {action.option_strings[-1].replace("_", "-"): action for action in get_args_parser()._actions[1:-2]}
    assert ours.keys() == theirs.keys()
    for flag in ours.values():
        assert bool(flag.value) == (theirs[flag.name].nargs != 0), flag.name
        assert flag.variable == ("env" in type(theirs[flag.name]).__name__), flag.name


CONFIRMED = [
    {"nnodes": "2", "nproc_per_node": "4"},
    {"nnodes": "2:8"},
    {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"},
    {"rdzv_backend": "static", "node_rank": "0", "master_addr": "127.0.0.1"},
    {"tee": "0:3,1:1", "redirects": "0", "event_log_handler": "null"},
    {"signals_to_handle": "SIGTERM,SIGINT", "local_addr": "localhost"},
]


@pytest.mark.parametrize("given", CONFIRMED, ids=str)
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
    ({"standalone": True}, "--standalone means one node, and 2 are held. Leave it out, or -t hosts=0:1 chooses"),
    ({"rdzv_backend": "etcd"}, "--rdzv-backend etcd: the ranks meet at a TCP store"),
    ({"rdzv_endpoint": "other:29500"}, "--rdzv-endpoint other:29500: each script has a store of its own"),
    ({"local_addr": "10.0.0.1"}, "know their own addresses"),
    ({"node_rank": "1"}, "one command starts the script on all nodes"),
    ({"event_log_handler": "console"}, "no elastic agent"),
    ({"signals_to_handle": "SIGTERM,SIGUSR1"}, "SIGUSR1 would not reach the ranks"),
    ({"duplicate_stdout_filters": "loss"}, "no filtered copies"),
    ({"logs_specs": "mine"}, "nodes keep the logs"),
    ({"numa_binding": "node"}, "not bound to processors"),
    ({"virtual_local_rank": True}, "LOCAL_RANK of its own"),
    ({"print_completion": "bash"}, "--print-completion bash: it is about torchrun's own command line"),
    ({"module": True, "run_path": True}, "leave one out"),
    ({"local_ranks_filter": "0,4"}, "4 CPU ranks on each node, 0 to 3"),
]


@pytest.mark.parametrize(("given", "said"), CONTRADICTIONS, ids=str)
def test_what_contradicts_says_what_to_do(given: Given, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(given, {}, TWO_BY_FOUR)


UNREADABLE = [
    ("nnodes", "two"),
    ("nnodes", "2:1"),
    ("nproc_per_node", "0"),
    ("max_restarts", "-1"),
    ("master_port", "http"),
    ("node_rank", ""),
    ("redirects", "0:9"),
    ("shutdown_timeout", "-3"),
    ("start_method", "thread"),
    ("local_ranks_filter", "0,,1"),
]


@pytest.mark.parametrize(("key", "value"), UNREADABLE)
def test_a_value_that_can_not_be_read_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^--{key.replace('_', '-')} {value}: give .*$"):
        read({key: value}, {}, TWO_BY_FOUR)


def test_what_changes_nothing_is_said_once() -> None:
    given = {"master_port": "9", "rdzv_endpoint": "localhost:29400", "redirects": "3", "log_dir": "logs"}
    assert read(given, {}, TWO_BY_FOUR).notes == (
        f"--master-port 9, --rdzv-endpoint localhost:29400: {OWN_STORE}",
        "--redirects 3: every rank's output is kept in files, and shown here all the same",
        "--log-dir logs: every rank's output is kept by its node: %mesh logs, or monarch-nb logs, shows it",
    )
    assert read({"nproc_per_node": "auto"}, {}, TWO_BY_FOUR).notes == (
        "--nproc-per-node auto: 4 CPU ranks on each node",
    )
    for key, value in {"rdzv_conf": "timeout=9", "monitor_interval": ".5", "shutdown_timeout": "30"}.items():
        assert len(read({key: value}, {}, TWO_BY_FOUR).notes) == 1
    assert len(read({"start_method": "spawn"}, {}, TWO_BY_FOUR).notes) == 1
    assert len(read({"log_line_prefix_template": "${rank}: "}, {}, TWO_BY_FOUR).notes) == 1


def test_what_is_honoured() -> None:
    given = {"max_restarts": "3", "rdzv_id": "job7", "role": "trainer", "local_ranks_filter": "0,2"}
    launch = read(given, {}, TWO_BY_FOUR)
    assert launch.max_restarts == 3
    assert launch.environment == {"TORCHELASTIC_RUN_ID": "job7", "ROLE_NAME": "trainer"}
    assert launch.shown == {0, 2}
    assert read({"module": True}, {}, TWO_BY_FOUR).module
    assert read({"no_python": True}, {}, TWO_BY_FOUR).executable
    assert not read({"no_python": True, "run_path": True}, {}, TWO_BY_FOUR).executable, "as torchrun: it comes first"


def test_one_node_of_gpus() -> None:
    read({"standalone": True, "nnodes": "1:1", "nproc_per_node": "8"}, {}, ONE_GPU_NODE)
    assert read({"nproc_per_node": "gpu"}, {}, ONE_GPU_NODE).notes == (
        "--nproc-per-node gpu: 8 GPU ranks on each node",
    )
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
    assert read({}, {"PET_NUMA_BINDING": "node"}, TWO_BY_FOUR) == Launch(), "torchrun does not read it either"


def test_a_pod_of_kubeflows_needs_no_flags() -> None:
    held = Held(nodes=1, ranks_per_node=4, hosts=frozenset({"localhost", "job-node-0-0"}))
    environment = {
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29500",
    }
    assert read({}, environment, held) == Launch(notes=(f"PET_MASTER_PORT=29500 (in the environment): {OWN_STORE}",))


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
