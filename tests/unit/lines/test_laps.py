"""Steps that begin anew are counted on, and training that has resumed keeps its places."""

from __future__ import annotations

from monarch_nb.lines.laps import MAX_EPOCHS, Laps


def test_epochs_that_lines_name() -> None:
    laps = Laps()
    assert laps.counted(1, [0, 50, 0, 50, 0], epochs=[1, 1, 2, 2, 3]) == [0, 50, 100, 150, 200]
    laps = Laps()
    assert laps.counted(1, [50, 100, 50, 100], epochs=[0, 0, 1, 1]) == [50, 100, 150, 200]
    once_an_epoch = Laps()
    assert once_an_epoch.counted(1, [99, 99, 99], epochs=[1, 2, 3]) == [99, 198, 297]


def test_steps_that_grow_over_epochs_are_what_they_are() -> None:
    assert Laps().counted(1, [1, 2, 3, 4], epochs=[1, 1, 2, 2]) == [1, 2, 3, 4]


def test_lines_that_name_no_epoch() -> None:
    laps = Laps()
    assert laps.counted(1, [0, 10, 20]) + laps.counted(1, [0, 10]) == [0, 10, 20, 30, 40]
    assert Laps().counted(1, [1, 2, 3, 1, 2, 3, 1]) == [1, 2, 3, 4, 5, 6, 7]


def test_bars_count_on_by_their_ends() -> None:
    some_states = [0, 17, 50, 0, 44, 49, 0]
    assert Laps().counted(1, some_states, ends=[50] * 7) == [0, 17, 50, 50, 94, 99, 100]


def test_a_training_that_resumes_keeps_its_places() -> None:
    assert Laps().counted(1, [0, 50, 100, 150, 100, 150]) == [0, 50, 100, 150, 100, 150]
    laps = Laps()
    assert laps.counted(1, [0, 50, 0, 50], epochs=[1, 1, 2, 2]) == [0, 50, 100, 150]
    assert laps.counted(2, [0, 50, 0], epochs=[2, 2, 3]) == [100, 150, 200]
    laps = Laps()
    laps.counted(1, [0, 50, 0], epochs=[1, 1, 2])
    assert laps.counted(2, [0, 50], epochs=[3, 3]) == [150, 200], "of an epoch that had no line yet"


def test_a_process_that_begins_from_the_start_goes_over_its_steps_again() -> None:
    laps = Laps()
    assert laps.counted(1, [0, 1, 2, 0, 1]) == [0, 1, 2, 3, 4]
    assert laps.counted(2, [0, 1, 2, 0]) == [0, 1, 2, 3]
    laps = Laps()
    assert laps.counted(1, [0, 1, 0, 1], epochs=[1, 1, 2, 2]) == [0, 1, 2, 3]
    assert laps.counted(2, [0, 1, 0, 1], epochs=[1, 1, 2, 2]) == [0, 1, 2, 3]


def test_a_second_training_in_one_process_is_counted_on() -> None:
    assert Laps().counted(1, [0, 1, 0, 1, 0, 1, 0], epochs=[1, 1, 2, 2, 1, 1, 2]) == [0, 1, 2, 3, 4, 5, 6]


def test_what_else_goes_back_within_an_epoch_changes_nothing() -> None:
    steps, epochs = [0, 1, 2, 0, 0, 1], [1, 1, 1, 1, 2, 2]
    assert Laps().counted(1, steps, epochs=epochs) == [0, 1, 2, 0, 3, 4]


def test_many_epochs_cost_bounded_memory() -> None:
    laps = Laps()
    epochs = [float(epoch) for epoch in range(MAX_EPOCHS + 100)]
    assert laps.counted(1, [0.0] * len(epochs), epochs=epochs) == epochs
    assert len(laps._begins) == MAX_EPOCHS
