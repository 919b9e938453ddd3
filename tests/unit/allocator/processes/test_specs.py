"""A rank's environment: torchrun's variables, the leased GPUs, the allocator's own and what --env adds."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from monarch_nb.allocator.processes.specs import Job, node_environment, place_in_mesh, place_of_node, rank_environment
from monarch_nb.config import RANK_TOKEN_VARIABLE, SHARED_VARIABLE
from monarch_nb.ground.places import Place
from monarch_nb.proto import allocator_pb2 as pb


def spec(**changes: object) -> pb.SpawnRequest:
    facts: dict[str, object] = {
        "mesh_id": "mesh",
        "first_rank": 4,
        "ranks": 4,
        "world_size": 8,
        "node_rank": 1,
        "master_host": "127.0.0.1",
        "master_port": 29500,
    }
    return pb.SpawnRequest(**(facts | changes))  # type: ignore[arg-type]


def environment(
    base: dict[str, str] | None = None,
    spec: pb.SpawnRequest = spec(),  # noqa: B008
    rank: int = 6,
    gpus: tuple[int, ...] = (),
    cpu_count: int = 16,
) -> dict[str, str]:
    job = Job(spec.mesh_id, spec.master_host, spec.master_port, restarts=2)
    return rank_environment(
        base or {},
        place_in_mesh(spec, rank),
        job,
        gpu_numbers=gpus,
        token="t",
        cpu_count=cpu_count,
        interface="eth1",
        added=spec.environment,
    )


def test_torchruns_variables() -> None:
    assert (
        environment().items()
        >= {
            "RANK": "6",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "2",
            "LOCAL_WORLD_SIZE": "4",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "NODE_RANK": "1",
            "ROLE_RANK": "6",
            "ROLE_WORLD_SIZE": "8",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "mesh",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "OMP_NUM_THREADS": "4",
        }.items()
    )


def test_defaults_of_training_libraries_mean_the_mesh_unless_the_user_says_something() -> None:
    defaults = {
        "PL_TRAINER_DEVICES": "4",
        "PL_TRAINER_NUM_NODES": "2",
        "ACCELERATE_USE_CPU": "true",
        "TTY_COMPATIBLE": "1",
    }
    assert environment().items() >= defaults.items()
    assert "ACCELERATE_USE_CPU" not in environment(gpus=(0,))
    alone = environment(spec=spec(ranks=1, world_size=1, first_rank=0, node_rank=0))
    assert (alone["PL_TRAINER_DEVICES"], alone["PL_TRAINER_NUM_NODES"]) == ("1", "1")
    for name in defaults:
        assert environment({name: "mine"})[name] == "mine"
        assert environment({name: "theirs"}, spec(environment={name: "mine"}))[name] == "mine"
    contradict_arguments = ("LT_", "PL_TRAINER_STRATEGY", "PL_TRAINER_ACCELERATOR")
    assert not [name for name in environment() if name.startswith(contradict_arguments)]


def test_rich_draws_a_bar_from_the_beginning() -> None:
    for own, is_live in (({}, True), ({"TTY_COMPATIBLE": "0"}, False)):
        written = io.StringIO()
        console = Console(file=written, _environ=environment(own))
        with Progress(console=console, auto_refresh=False) as progress:
            progress.update(progress.add_task("training", total=2), advance=1, refresh=True)
            assert ("50%" in written.getvalue()) == is_live


def test_only_the_leased_gpus_are_visible() -> None:
    for gpus, text in (((), ""), ((3,), "3"), ((0, 2), "0,2")):
        told = environment({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, gpus=gpus)
        assert told["CUDA_VISIBLE_DEVICES"] == text
        assert all(type(value) is str for value in told.values())


def test_cpus_are_shared_out_unless_the_user_says_how() -> None:
    assert [environment(cpu_count=count)["OMP_NUM_THREADS"] for count in (16, 6, 2)] == ["4", "1", "1"]
    own = {"OMP_NUM_THREADS": "3"}
    for added, threads in (({}, "3"), ({"OMP_NUM_THREADS": "5"}, "5")):
        assert environment(own, spec(environment=added))["OMP_NUM_THREADS"] == threads


def test_the_allocators_environment_is_passed_on_but_for_grpcs_and_a_kernels() -> None:
    base = {"PATH": "/bin", "A": "1", "GRPC_ENABLE_FORK_SUPPORT": "0", "JPY_PARENT_PID": "7", "RANK": "99"}
    base |= {RANK_TOKEN_VARIABLE: "of another rank", SHARED_VARIABLE: "/old"}
    added = {"A": "2", "NCCL_DEBUG": "INFO", "MASTER_PORT": "1", SHARED_VARIABLE: "/data"}
    got = environment(base, spec(environment=added))
    assert got.items() >= {**added, "PATH": "/bin", "RANK": "6", RANK_TOKEN_VARIABLE: "t"}.items(), "what is added wins"
    assert not [name for name in got if name.startswith(("GRPC_", "JPY_"))]
    assert base["RANK"] == "99"
    assert SHARED_VARIABLE not in environment(base), "shared storage is what the reservation named"
    assert got["GLOO_SOCKET_IFNAME"] == "eth1"
    assert got["NCCL_SOCKET_IFNAME"] == "=eth1", "only that one, not also eth10"


def place(node_rank: int, ranks: Sequence[int]) -> Place:
    return place_of_node(spec(ranks=4, world_size=12, first_rank=4 * node_rank, node_rank=node_rank), ranks)


class TestCommands:
    def test_are_told_of_the_nodes_that_run_them(self) -> None:
        told = [node_environment(environment(), place(node, (0, 8)), "/env/bin/python") for node in (0, 2)]
        for number, own in enumerate(told):
            ours = {name: own[name] for name in ("NODE_RANK", "NNODES", "NPROC_PER_NODE")}
            assert ours == {"NODE_RANK": str(number), "NNODES": "2", "NPROC_PER_NODE": "4"}
            assert {f"PET_{name}": value for name, value in ours.items()}.items() <= own.items()
            assert (own["PET_MASTER_ADDR"], own["PET_MASTER_PORT"]) == (own["MASTER_ADDR"], own["MASTER_PORT"])

    def test_know_nothing_of_ranks_nor_of_who_started_the_allocator(self) -> None:
        base = {"PET_NNODES": "7", "PET_RDZV_BACKEND": "c10d", "RANKS_OF_MINE": "1"}
        own = node_environment(environment(base), place(0, (0, 8)), "/env/bin/python")
        assert (own["PET_NNODES"], own["RANKS_OF_MINE"]) == ("2", "1")
        names = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "PET_RDZV_BACKEND"}
        assert not [name for name in own if name in names or name.startswith("TORCHELASTIC")]

    def test_find_what_is_installed_for_the_ranks_first_and_print_at_once(self) -> None:
        for base, python, path, unbuffered in (
            ({"PATH": "/bin"}, "/env/bin/python", "/env/bin:/bin", "1"),
            ({"PATH": "/bin", "PYTHONUNBUFFERED": ""}, "", "/bin", ""),
        ):
            own = node_environment(environment(base), place(0, (0,)), python)
            assert (own["PATH"], own["PYTHONUNBUFFERED"]) == (path, unbuffered)
