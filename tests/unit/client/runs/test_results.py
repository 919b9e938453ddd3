"""How the ranks of a run ended, of which nothing is made until somebody looks."""

from __future__ import annotations

import pytest

from monarch_nb.client.connections import events
from monarch_nb.client.runs.results import RunResults
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb


def failed(rank: int) -> events.Result:
    return events.Result(rank, "error", 0.5)


@pytest.fixture
def results() -> RunResults:
    results = RunResults()
    results[3] = failed(3)
    equal = pb.EqualResults(ranks=pb.NumberRanges(bounds=(2, 3, 0, 2)), durations_s=[0.3, 0.1, 0.2])
    results.add_alike(Ranges.of([0, 1]), equal, may_print_later=True)
    return results


def test_each_rank_has_its_own(results: RunResults) -> None:
    assert results[1] == events.Result(1, "ok", 0.2, may_print_later=True)
    assert results[1] is results[1]
    assert [result.duration_s for result in results.values()] == [0.5, 0.1, 0.2], "in the order in which they came"
    assert results.notable == [failed(3)], "who looks at one makes it no more notable"
    assert results.keys() == {0, 1, 3}
    assert list(results.left_of(Ranges.of(range(6)))) == [2, 4, 5]
    assert results.ranks_ok() == [0, 1]
    assert 2 not in results, "its result came before, or is another run's"
    with pytest.raises(KeyError):
        results[2]


def test_a_script_begins_anew(results: RunResults) -> None:
    results[0] = results[3] = failed(0)
    assert len(results) == len(list(results)) == 3, "a rank that is told of again counts once"
    results.clear()
    assert not results
    assert results.notable == []
