"""When a reservation ends by itself: on a clock that the test moves."""

from typing import Any

import pytest

from monarch_nb.allocator.state.lease import Limits
from monarch_nb.allocator.state.state import MAX_ENDED, NodeState
from monarch_nb.errors import ReservationExpired, ReservationReleased
from monarch_nb.proto import allocator_pb2 as pb

HOUR_S = 3600.0
ASKED: Any = {"reservation_id": "r", "name": "dev", "owner": "me", "nodes": 3, "procs": 2, "where": "--on slurm"}


def confirmed(time_s: float = 0.0, idle_s: float = 0.0, at_s: float = 100.0) -> Limits:
    limits = Limits(time_s, idle_s)
    limits.confirm(at_s)
    return limits


class TestTime:
    @pytest.mark.parametrize(("time_s", "before_s"), [(8 * HOUR_S, 600), (20 * 60, 600), (60, 30)])
    def test_the_warning_comes_ten_minutes_before_or_half_way(self, time_s: float, before_s: float) -> None:
        limits = confirmed(time_s, at_s=0.0)
        assert not limits.is_nearly_up(time_s - before_s - 1)
        assert limits.is_nearly_up(time_s - before_s)

    def test_an_extension_adds_and_warns_again(self) -> None:
        limits = confirmed(HOUR_S, at_s=0.0)
        limits.confirm(200.0)  # again, which gives it no more time
        limits.warned = True
        limits.extend(HOUR_S + 60, HOUR_S - 60)
        assert limits.warned, "two minutes are nearly up, too"
        limits.extend(3 * HOUR_S, HOUR_S - 60)
        assert not limits.warned
        assert limits.time_left_s(HOUR_S) == 2 * HOUR_S


class TestIdle:
    def test_only_time_without_use_counts(self) -> None:
        limits = confirmed(idle_s=2 * HOUR_S, at_s=0.0)
        assert limits.idle_left_s(HOUR_S, busy=False) == HOUR_S
        assert limits.idle_left_s(9 * HOUR_S, busy=True) == 2 * HOUR_S
        limits.used_s = 9 * HOUR_S
        assert limits.idle_left_s(10 * HOUR_S, busy=False) == HOUR_S
        assert limits.idle_left_s(11 * HOUR_S, busy=False) == 0
        assert limits.was_idle == "nobody used it for 2 h"


class TestRestart:
    def again(self, before: Limits, now_s: float, boot: str = "boot", *, confirmed: bool = True) -> Limits:
        return Limits.from_record(before.record("boot"), boot, now_s, confirmed=confirmed)

    def test_idle_time_is_not_given_again_but_clients_have_time_to_come_back(self) -> None:
        for after_s, left_s in ((HOUR_S / 2, HOUR_S / 2), (3 * HOUR_S, 30)):
            limits = self.again(confirmed(idle_s=HOUR_S), 100.0 + after_s)
            assert limits.idle_left_s(100.0 + after_s, busy=False) == left_s

    def test_after_a_boot_it_counts_anew(self) -> None:
        limits = self.again(confirmed(HOUR_S, HOUR_S, at_s=1e6), 20.0, "another")
        assert limits.time_left_s(20.0) == limits.idle_left_s(20.0, busy=False) == HOUR_S


class TestEnded:
    def ended(self, **how: str) -> NodeState:
        state = NodeState(4)
        state.reserve(pb.ReserveRequest(**ASKED, time_s=HOUR_S))
        state.add_mesh(pb.SpawnRequest(mesh_id="m", reservation_id="r", ranks=2))
        state.end("r", 1e9, **how)
        state.release("r")
        return state

    @pytest.mark.parametrize(
        ("how", "error", "said"),
        [
            (
                {"why": "its time of 1 h was up"},
                ReservationExpired,
                "at .* 1 h was up; %mesh reserve dev --nodes 3 --procs 2 --on slurm makes .*, %mesh logs dev",
            ),
            ({"by": "in the panel"}, ReservationReleased, "at .* in the panel: %mesh reserve dev .* makes a new one$"),
        ],
    )
    def test_whoever_asks_later_learns_why(self, how: dict[str, str], error: type[Exception], said: str) -> None:
        state = self.ended(**how)
        for ask in (lambda: state.lease("r"), lambda: state.mesh("m")):
            with pytest.raises(error, match=f"^dev was released {said}") as caught:
                ask()
            assert vars(caught.value).items() >= {"name": "dev", "ended_at": 1e9, **how}.items()

    def test_only_the_newest_are_remembered(self) -> None:
        state = NodeState(1)
        for number in range(MAX_ENDED + 1):
            state.reserve(pb.ReserveRequest(reservation_id=f"r{number}", name="dev", owner="me", procs=1))
            state.end(f"r{number}", 1e9, why="nobody used it for 2 h")
            state.release(f"r{number}")
        assert len(state.ended) == MAX_ENDED
        assert "r0" not in state.ended
