"""The shape of a local pool: what it becomes for who asks for more, and what is said of much."""

import pytest

from monarch_nb.config import LOG_LIMIT_VARIABLE
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.known import Change, PoolShape, change_for, too_much, wanted_shape


def agree(
    there: PoolShape | None,
    procs: int | None = None,
    *,
    gpus: str | None = None,
    isolate: bool = False,
    log_limit: str | None = None,
) -> PoolShape:
    return wanted_shape(there, procs, gpus, isolate, log_limit)


class TestShape:
    """What `up` makes of a pool that there is, or not yet."""

    def test_what_is_not_said_is_as_it_is(self) -> None:
        there = PoolShape(4, "all", log_limit="5GB")
        assert agree(there, 8) == PoolShape(8, "all", log_limit="5GB")
        assert agree(there, gpus="none", isolate=True) == PoolShape(4, "none", True, "5GB")
        assert agree(there, log_limit="1TB") == PoolShape(4, "all", log_limit="1TB")

    def test_what_it_is_and_its_limit_of_logs_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(LOG_LIMIT_VARIABLE, "3GB")
        assert agree(None) == PoolShape(usable_cpus(), "all", log_limit="3GB"), "one rank per core"
        there = PoolShape(4, "all", isolate=True, log_limit="5GB", by_itself=True)
        assert agree(there).by_itself, "it stays what it is"


def described(*free: int) -> list[pb.DescribeReply]:
    """Nodes of 4 slots, of which so many are free."""
    held = pb.Holder(reservation="dev")
    return [pb.DescribeReply(procs=4, procs_free=count, holders=[held] * (count < 4)) for count in free]


class TestRoom:
    def test_what_fits_or_takes_from_anybody_changes_nothing(self) -> None:
        assert change_for(2, 4, described(4, 4), by_itself=True, cores=2) is None
        assert change_for(1, 2, described(1, 3), by_itself=True, cores=2) is None
        assert change_for(9, 0, described(4), by_itself=True, cores=2) is None, "GPUs do not grow"
        assert change_for(1, 8, described(4, 3), by_itself=True, cores=2) is None

    @pytest.mark.parametrize("by_itself", [False, True])
    def test_one_that_holds_nothing_takes_the_shape_that_is_asked_for(self, by_itself: bool) -> None:
        assert change_for(1, 8, described(4, 4), by_itself=by_itself, cores=2) == Change(1, 8, anew=True)
        assert change_for(3, 2, described(4, 4), by_itself=by_itself, cores=2) == Change(3, 4, anew=False)

    def test_one_that_is_wider_than_anybody_means_is_made_anew(self) -> None:
        wide = [pb.DescribeReply(procs=200, procs_free=200)]
        assert change_for(2, 2, wide, by_itself=True, cores=2) == Change(2, 2, anew=True)
        assert change_for(2, 2, wide, by_itself=False, cores=2) == Change(2, 200, anew=False), "somebody wanted it so"

    def test_one_that_started_by_itself_grows_beside_what_is_held(self) -> None:
        assert change_for(2, 4, described(0, 4), by_itself=True, cores=2) == Change(3, 4, anew=False)
        assert change_for(2, 3, described(0, 2), by_itself=True, cores=2) == Change(4, 4, anew=False)
        assert change_for(2, 4, described(0, 4), by_itself=False, cores=2) is None, "somebody wanted it so"

    def test_nodes_of_a_reservation_that_is_to_have_more_are_not_free_for_it(self) -> None:
        """`dev` fills node0 and leaves slots of node1 free; a colleague of that name has some of node2."""
        mine, other = pb.Holder(reservation="dev", owner="ann"), pb.Holder(reservation="dev", owner="bob")
        nodes = [
            pb.DescribeReply(procs=4, procs_free=free, holders=[holder])
            for free, holder in ((0, mine), (2, mine), (2, other))
        ]
        for missing, becomes in ((1, None), (2, Change(4, 4, anew=False)), (4, Change(6, 4, anew=False))):
            assert change_for(missing, 2, nodes, by_itself=True, cores=2, but=("dev", "ann")) == becomes
        assert change_for(2, 2, nodes, by_itself=False, cores=2, but=("dev", "ann")) is None, "somebody wanted it so"

    def test_more_than_the_cores_are_for_is_said_first(self) -> None:
        assert too_much(8, 4, cores=2) == too_much(1, 32, cores=2) == too_much(64, 256, cores=1024) == ""
        assert too_much(1, 200, cores=2) == (
            "1 node × 200 procs share this machine's 2 cores (100 ranks for each); Ctrl-C (■) ends them again"
        )
        assert too_much(40, 2, cores=2) == (
            "40 nodes × 2 procs share this machine's 2 cores (40 ranks for each); to start them takes about 40 s and "
            "16 GB of memory; Ctrl-C (■) ends them again"
        )
