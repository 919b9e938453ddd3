"""Scripts and cells on a node's ranks: two lanes, and what the death of either kind of process means."""

from collections.abc import Iterable

import pytest

from monarch_nb.allocator.state.runs import Effect, Mesh, RankFinished, Run, StartRun
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.ground.places import Place
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

ALL = (0, 1)


@pytest.fixture
def state() -> NodeState:
    """A node with a mesh "m" of 2 ranks that are ready."""
    made = NodeState(2)
    made.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="me", procs=2))
    made.add_mesh(pb.SpawnRequest(mesh_id="m", reservation_id="r", ranks=2, world_size=2))
    for rank in ALL:
        made.rank_ready("m", rank)
    return made


def submit(
    state: NodeState, run_id: str, ranks: Iterable[int] = ALL, *, cell: bool = False, beside: bool = False
) -> tuple[pb.Queued, list[Effect]]:
    """Submit a script, or a cell."""
    run = run_pb2.RunSpec(run_id=run_id)
    if cell:
        run.cell.code = "pass"
    else:
        run.script.path, run.script.beside = "train.py", beside
    chosen = list(ranks)
    request = pb.Submit(mesh_id="m", run=run, ranks=chosen, all_ranks=chosen, give_number=True, title=run_id)
    return state.submit(request, now=1.0)


def finish(state: NodeState, run_id: str, rank: int) -> list[Effect]:
    """A script has come to its end on a rank; its process is still there."""
    return state.script_result("m", run_pb2.RankResult(run_id=run_id, rank=rank, outcome=run_pb2.OUTCOME_OK))


def started(effects: list[Effect]) -> dict[int, str]:
    return {effect.rank: effect.run.run_id for effect in effects if isinstance(effect, StartRun)}


def mesh(state: NodeState) -> Mesh:
    return state.meshes["m"]


def test_neither_lane_waits_for_the_other(state: NodeState) -> None:
    assert started(submit(state, "cell", cell=True)[1]) == dict.fromkeys(ALL, "cell")
    queued, effects = submit(state, "script")
    assert (list(queued.ahead), started(effects)) == ([], dict.fromkeys(ALL, "script"))
    queued, effects = submit(state, "second cell", cell=True)
    assert (list(queued.ahead), started(effects)) == (["run 1 (cell)"], {})


def test_a_slot_is_the_next_scripts_when_the_process_before_is_gone(state: NodeState) -> None:
    submit(state, "a")
    queued, effects = submit(state, "b", [0])
    assert (list(queued.ahead), started(effects)) == (["run 1 (a)"], {})
    assert started(finish(state, "a", 0)) == {}
    assert started(state.script_ended("m", 0, "a")) == {0: "b"}


def test_beside_waits_for_none_and_holds_up_none(state: NodeState) -> None:
    submit(state, "a")
    submit(state, "waits", [1])
    queued, effects = submit(state, "beside", beside=True)
    assert (list(queued.ahead), started(effects)) == ([], dict.fromkeys(ALL, "beside"))
    finish(state, "a", 1)
    assert started(state.script_ended("m", 1, "a")) == {1: "waits"}
    assert list(submit(state, "last", [0])[0].ahead) == ["run 1 (a)"]


def test_a_script_lives_through_the_death_of_live_ranks(state: NodeState) -> None:
    submit(state, "script")
    submit(state, "cell", [1], cell=True)
    death = run_pb2.Death(signal=9)
    ended = [effect for effect in state.rank_died("m", 1, death) if isinstance(effect, RankFinished)]
    assert [effect.run_id for effect in ended] == ["cell"]
    finish(state, "script", 1)
    state.script_ended("m", 1, "script")
    assert started(submit(state, "another", [1])[1]) == {1: "another"}, "a dead rank's slot takes scripts"


def test_its_death_does_not_touch_the_live_rank(state: NodeState) -> None:
    submit(state, "script")
    failed = run_pb2.RankResult(run_id="script", rank=0, outcome=run_pb2.OUTCOME_DIED)
    [finished] = state.script_result("m", failed)
    assert isinstance(finished, RankFinished)
    assert state.script_result("m", failed) == [], "told once"
    state.script_ended("m", 0, "script")
    slot = mesh(state).ranks[0]
    assert (slot.ready, slot.death, slot.failure) == (True, None, None)
    assert started(submit(state, "cell", [0], cell=True)[1]) == {0: "cell"}


def test_a_script_keeps_the_reservation_in_use_until_its_processes_are_gone(state: NodeState) -> None:
    submit(state, "script")
    assert state.is_running("r")
    for rank in ALL:
        finish(state, "script", rank)
        assert state.is_running("r")
        state.script_ended("m", rank, "script")
    assert not state.is_running("r")


def test_a_script_never_uses_the_files_of_another_run(state: NodeState) -> None:
    submit(state, "cell", cell=True)
    for rank in ALL:
        state.result("m", run_pb2.RankResult(run_id="cell", rank=rank, outcome=run_pb2.OUTCOME_OK, untouched=True))
    assert submit(state, "script")[0].output == 2
    assert submit(state, "second cell", cell=True)[0].output == 1


def test_a_restarted_allocator_begins_where_the_one_before_had_not(state: NodeState) -> None:
    submit(state, "script")
    submit(state, "next")
    records = [run.record() for run in mesh(state).runs.values()]
    restarted = NodeState(2)
    restarted.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="me", procs=2))
    restarted.add_mesh(pb.SpawnRequest(mesh_id="m", reservation_id="r", ranks=2, world_size=2))
    for record in records:
        mesh(restarted).add_run(Run.from_record(record))
    # It was killed before it had forked the one for rank 1.
    assert started(restarted.scripts_known([("m", 0, "script")])) == {1: "script"}
    assert mesh(restarted).ranks[0].scripts == {"script"}
    finish(restarted, "script", 0)
    assert started(restarted.script_ended("m", 0, "script")) == {0: "next"}


@pytest.mark.parametrize(
    ("rank", "ranks", "place"),
    [
        (0, range(8), Place(0, 8, 0, 4, 0, 2)),
        (6, range(8), Place(6, 8, 2, 4, 1, 2)),
        (6, [2, 3, 6, 7], Place(2, 4, 0, 2, 1, 2)),
        (7, [6, 7], Place(1, 2, 1, 2, 0, 1)),
    ],
)
def test_the_chosen_ranks_are_the_world(rank: int, ranks: Iterable[int], place: Place) -> None:
    assert Place.among(rank, ranks, per_node=4) == place
