"""Which nodes a reservation gets, and what is said when there are too few; arguments of `reserve`."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.choosing import Shape, choose_nodes
from monarch_nb.client.pools.held import not_found, not_whole
from monarch_nb.client.pools.pool import HeldReservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.reservations.taking import environment_option, unset_note, working_directory
from monarch_nb.errors import CapacityError, NodeUnreachable, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb


def node(
    index: int, free: int = 4, of: int = 4, gpus_free: int = 0, gpus: int = 0, *held: pb.Holder
) -> pb.DescribeReply:
    return pb.DescribeReply(
        node_id=f"node{index}",
        address=f"unix:/node{index}",
        procs=of,
        procs_free=free,
        gpus=[pb.Gpu(index=i) for i in range(gpus)],
        gpus_free=gpus_free,
        holders=held,
    )


class TestChooseNodes:
    def test_the_first_that_have_enough(self) -> None:
        nodes = [node(0, free=1), node(1), node(2, free=3), node(3)]
        assert choose_nodes(Shape(2, 4, 0), nodes) == [1, 3]
        assert choose_nodes(Shape(2, 3, 0), nodes) == [1, 2]

    def test_too_few_says_what_is_free_and_who_holds_the_rest(self) -> None:
        held = pb.Holder(reservation="train", owner="ann", procs=3)
        with pytest.raises(CapacityError) as raised:
            choose_nodes(Shape(2, 4, 0), [node(0), node(1, 1, 4, 0, 0, held)])
        assert str(raised.value).splitlines() == [
            "2 nodes × 4 procs asked for, but only 1 of 2 nodes can take 4 procs:",
            "  node0: 4 of 4 procs free",
            "  node1: 1 of 4 procs free; train (ann) holds 3 procs",
            "--wait waits for it; or release what you no longer need (%mesh release NAME), or ask for less",
        ]

    def test_a_gpu_that_is_lost_is_not_free(self) -> None:
        with_lost = node(0, 4, 4, 7, 8)
        with_lost.gpus[3].trouble = "GPU 3 has fallen off the bus"
        assert choose_nodes(Shape(1, 0, 7), [with_lost]) == [0]
        with pytest.raises(CapacityError, match="node0: 7 of 8 gpus free; GPU 3 has fallen off the bus"):
            choose_nodes(Shape(1, 0, 8), [with_lost])

    def test_gpus_that_others_use_come_last(self) -> None:
        nodes = [node(0, gpus_free=1, gpus=2), node(1, gpus_free=2, gpus=2), node(2, gpus_free=2, gpus=2)]
        nodes[0].gpus[1].used_by.add(pid=4711, name="python", user="bob", memory_bytes=11_200_000_000)
        assert choose_nodes(Shape(2, 0, 2), nodes, force_busy=True) == [1, 2]
        assert choose_nodes(Shape(3, 0, 2), nodes, force_busy=True) == [0, 1, 2]
        with pytest.raises(CapacityError) as raised:
            choose_nodes(Shape(3, 0, 2), nodes)
        lines = str(raised.value).splitlines()
        assert lines[1] == "  node0: 1 of 2 gpus free; GPU 1 is busy: pid 4711 (python, bob, 11 GB)"
        assert lines[-1].startswith("--force-busy also takes GPUs that others use")

    def test_a_gpu_that_this_process_uses_itself(self) -> None:
        """As a notebook does in which torch initialised CUDA, before anybody thought of ranks."""
        nodes = [node(0, gpus_free=0, gpus=1)]
        nodes[0].address = "unix:/a"
        nodes[0].gpus[0].used_by.add(pid=4711, name="python", user="bob")
        with pytest.raises(CapacityError, match=r"\npid 4711 is this process: restart the kernel"):
            choose_nodes(Shape(1, 0, 1), nodes, own_pid=4711)
        nodes[0].address = "host1:7878"
        with pytest.raises(CapacityError, match=r"--force-busy .* memory and time$"):
            choose_nodes(Shape(1, 0, 1), nodes, own_pid=4711)

    def test_gpus_that_another_pool_holds_are_not_free_by_force(self) -> None:
        one = node(0, gpus_free=1, gpus=2)
        one.gpus[1].held_by.owner = "ann"
        one.gpus[1].used_by.add(pid=4711)
        with pytest.raises(CapacityError, match="GPU 1 is held by ann\n"):
            choose_nodes(Shape(1, 0, 2), [one], force_busy=True)

    def test_what_never_fits_says_what_helps(self) -> None:
        local, hosts = [node(0), node(1)], [node(0), node(1)]
        hosts[1].address = "host1:7878"
        lost = node(0, gpus_free=1, gpus=2)
        lost.gpus[1].trouble = "fallen off the bus"
        full = [node(index, free=0) for index in range(3)]
        for shape, there, besides, said in (
            (Shape(3, 1, 0), local, 0, "monarch-nb up --nodes 3 adds nodes"),
            (Shape(9, 4, 0), full, 0, "monarch-nb up --nodes 12 adds nodes"),  # those that are held do not count
            (Shape(1, 8, 0), local, 0, "release all reservations .*: a local pool without reservations"),
            (Shape(3, 1, 0), hosts, 0, "ask for less: 2 nodes can take 1 proc at all"),
            (Shape(1, 9, 0), hosts, 0, r"ask for less: the largest node of this pool has \d procs"),
            (
                Shape(2, 0, 2),
                [node(0, gpus_free=2, gpus=2), node(1)],
                0,
                "less: 1 node of this pool has 2 GPUs that can",
            ),
            (Shape(1, 0, 2), [lost], 0, "ask for less: the largest node of this pool has 1 gpu"),
            (Shape(1, 0, 1), local, 0, "^1 GPU per node asked for, .* has a GPU; --procs N asks for"),
        ):
            with pytest.raises(CapacityError, match=said):
                choose_nodes(shape, there, besides=besides)

    def test_of_a_reservation_that_is_to_have_more_the_nodes_besides_its_own_are_counted(self) -> None:
        with pytest.raises(CapacityError, match=r"^4 nodes × 2 procs asked for, but only 2 of 2 other nodes can take"):
            choose_nodes(Shape(4, 2, 0), [node(0), node(1)], besides=2)

    def test_nodes_that_do_not_answer_are_named(self) -> None:
        with pytest.raises(CapacityError) as raised:
            choose_nodes(Shape(2, 1, 0), [node(0)], silent={"host3": "timed out"})
        assert "  host3: does not answer (timed out)" in str(raised.value).splitlines()
        assert "only 1 of 2 nodes can take 1 proc:" in str(raised.value), "it is one of the pool's"


def test_arguments_are_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "never-made"))
    started = "monarch_nb.client.reservations.taking.provisioner_of"
    monkeypatch.setattr(started, lambda _: pytest.fail("started a pool"))
    for option in ("nodes", "procs", "gpus"):
        for value in (0, -1, "2", "many", 1.0, 2.5, True):
            options: dict[str, Any] = {"procs": 1, "nodes": 1} | {option: value}
            with pytest.raises(UsageError, match=f"{option} must be a whole number of at least 1, not {value!r}"):
                reserve("dev", **options)
    for options in ({}, {"procs": 1, "gpus": 1}):
        with pytest.raises(UsageError, match="exactly one of them"):
            reserve("dev", **options)
    for name in ("-x", " ", "a b", "a/b", "..\\x", "a\nb", "x" * 65, "\0"):
        with pytest.raises(UsageError, match="no name for a reservation"):
            reserve(name, procs=1)
    assert not (tmp_path / "never-made").exists()


MAIN = pb.MeshStatus(mesh_id="m", name="main", spec=pb.SpawnRequest(mesh_id="m", name="main", ranks=4, world_size=8))


def held(name: str = "dev", owner: str = "me", nodes: int = 2, answering: int = 2, meshes: int = 1) -> HeldReservation:
    status = pb.ReservationStatus(name=name, owner=owner, nodes=nodes, procs=4, meshes=[MAIN] * meshes)
    connection: Any = SimpleNamespace(identity=None)
    return HeldReservation("id", dict.fromkeys(range(answering), (connection, status)))


class TestWhatIsHeld:
    @pytest.fixture(autouse=True)
    def me(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("monarch_nb.client.pools.held.current_owner", lambda identity: "me")

    def test_one_that_is_not_whole(self) -> None:
        assert held().complete
        away, being_made = held(answering=1), held(meshes=0)
        assert not away.complete
        assert not being_made.complete
        assert isinstance(not_whole(away), NodeUnreachable)
        assert "1 of its 2 nodes do not answer" in str(not_whole(away))
        assert isinstance(not_whole(being_made), ReservationNotFound)
        assert "is not ready" in str(not_whole(being_made))

    def test_not_found_lists_mine_and_nodes_that_may_have_it(self) -> None:
        text = str(not_found("dex", [held("dev"), held("eval", nodes=1), held("secret", owner="ann")]))
        assert text == "no reservation 'dex'; you hold dev (2 nodes × 4 procs), eval (1 node × 4 procs)"
        assert "you hold none: %mesh reserve NAME" in str(not_found(None, []))
        text = str(not_found("dev", [], silent=["host1"]))
        assert text.startswith("no reservation 'dev' on the nodes that answer (host1 does not); you hold none")
        assert "(host1, host2 do not)" in str(not_found("dev", [], silent=["host1", "host2"]))


class TestOptions:
    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HERE", "value")
        monkeypatch.delenv("MISSING", raising=False)
        chosen = {"A": "1", "EMPTY": "", "HERE": None, "MISSING": None}
        assert environment_option(chosen) == {"A": "1", "EMPTY": "", "HERE": "value"}
        assert environment_option(None) == {}
        assert unset_note(chosen) == "--env MISSING changes nothing: it is not set here"
        assert unset_note({"MISSING": None, "GONE": None}) == (
            "--env MISSING, --env GONE change nothing: they are not set here"
        )
        assert not unset_note({"HERE": None, "MISSING": "1"})
        assert not unset_note(None)

    def test_an_environment_that_no_process_can_have(self) -> None:
        number: dict[str, Any] = {"OMP_NUM_THREADS": 4}
        for chosen, said in (
            (number, "env: OMP_NUM_THREADS is 4, which is no string: {'OMP_NUM_THREADS': '4'} is"),
            ({"A=B": "1"}, "no variable can be called 'A=B'"),
            ({"": "1"}, "no variable can be called ''"),
            ({"A": "\0"}, "'A' has a zero byte"),
            *(
                ({name: value}, f"env: {name} is none to choose: monarch_nb sets it in every rank, as torchrun does")
                for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")
                for value in ("5", None)
            ),
        ):
            with pytest.raises(UsageError, match=re.escape(said)):
                environment_option(chosen)

    def test_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        notebook = tmp_path / "nb" / "a.ipynb"
        notebook.parent.mkdir()
        notebook.touch()
        monkeypatch.chdir(tmp_path)
        assert working_directory(None, str(notebook)) == str(notebook.parent)
        assert working_directory(None, "nb/a.ipynb") == str(notebook.parent)
        assert working_directory("nb", str(notebook)) == str(tmp_path / "nb")
        assert working_directory(None, "gone/x.ipynb") == str(tmp_path)
        assert working_directory(None, None) == str(tmp_path)
