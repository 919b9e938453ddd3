"""Displays of ranks fold, are replaced and cleared, and are bounded."""

from typing import Any

from monarch_nb.client.connections.events import (
    Display,
    Text,
)
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.rows import DisplayRow, ElidedRow, members
from unit.notebook.output.folds import fold_of, shown_of


def _picture(name: str) -> dict[str, Any]:
    return {"image/png": name, "text/plain": "<Figure>"}


def _pictures(fold: Fold) -> list[tuple[tuple[int, ...], str]]:
    return [(members(row.ranks), row.data["image/png"]) for row in fold.rows() if isinstance(row, DisplayRow)]


def test_equal_displays_fold() -> None:
    fold = fold_of(3, *(Display(rank, "show", _picture("ab"[rank == 1])) for rank in range(3)))
    assert _pictures(fold) == [((0, 2), "a"), ((1,), "b")]


def test_metadata_makes_a_difference() -> None:
    fold = fold_of(2, *(Display(rank, "show", _picture("a"), {"width": rank}) for rank in range(2)))
    assert _pictures(fold) == [((0,), "a"), ((1,), "a")]


def test_updates_replace_in_place() -> None:
    fold = Fold(range(2))
    for rank in range(2):
        fold.add(Display(rank, "show", _picture("a"), display_id="id"))
        fold.add(Text(rank, "stdout", "after\n"))
    fold.add(Display(1, "update", _picture("b"), display_id="id"))
    assert _pictures(fold) == [((0,), "a"), ((1,), "b")]
    fold.add(Display(0, "update", _picture("b"), display_id="id"))
    assert shown_of(fold.rows()) == [("0,1", "DisplayRow"), ("0,1", "after")]
    assert _pictures(fold) == [((0, 1), "b")]


def test_an_update_of_what_is_not_there_shows_it() -> None:
    fold = fold_of(1, Display(0, "update", _picture("a"), display_id="elsewhere"), Text(0, "stdout", "after\n"))
    fold.add(Display(0, "update", _picture("b"), display_id="elsewhere"))
    assert shown_of(fold.rows()) == [("0", "DisplayRow"), ("0", "after")]
    assert _pictures(fold) == [((0,), "b")]
    fold.add(Display(0, "clear"))
    fold.add(Display(0, "update", _picture("c"), display_id="elsewhere"))
    assert _pictures(fold) == [((0,), "c")]


def test_clear_removes_what_the_rank_showed() -> None:
    fold = fold_of(2, *(Text(rank, "stdout", "a\nopen") for rank in range(2)), Display(0, "clear"))
    assert shown_of(fold.rows()) == [("1", "a"), ("1", "open")]


def test_clear_can_wait_for_the_next_output() -> None:
    fold = fold_of(1, Display(0, "show", _picture("a")), Display(0, "clear", {"wait": True}))
    assert _pictures(fold) == [((0,), "a")]
    fold.add(Display(0, "show", _picture("b")))
    assert _pictures(fold) == [((0,), "b")]


def test_an_animation_stays_small() -> None:
    fold = Fold(range(2))
    for frame in range(500):
        for rank in range(2):
            fold.add(Display(rank, "clear", {"wait": True}))
            fold.add(Display(rank, "show", _picture(f"{frame}"), display_id="x"))
            fold.add(Display(rank, "update", _picture(f"{frame}+"), display_id="x"))
    assert _pictures(fold) == [((0, 1), "499+")]


def test_many_displays_are_named_but_not_kept() -> None:
    fold = fold_of(1, *(Display(0, "show", _picture(str(count))) for count in range(50)))
    assert [name for _, name in _pictures(fold)] == [str(count) for count in (0, 1, 2, 3, *range(34, 50))]
    elided = [row for row in fold.rows() if isinstance(row, ElidedRow)]
    assert len(elided) == 30
    assert elided[0].text == "<Figure>"


def test_updates_of_displays_beyond_those_kept_move_no_others_out() -> None:
    handles = [str(count) for count in range(30)]
    fold = fold_of(1, *(Display(0, "show", _picture(handle), display_id=handle) for handle in handles))
    shown = _pictures(fold)
    for handle in handles:
        update = Display(0, "update", _picture(f"{handle}+"), display_id=handle)
        assert fold.shows_display(update)
        fold.add(update)
    assert _pictures(fold) == [(ranks, f"{name}+") for ranks, name in shown]
    assert len([row for row in fold.rows() if isinstance(row, ElidedRow)]) == 10
    fold.add(Display(0, "clear"))
    update = Display(0, "update", _picture("new"), display_id=handles[10])
    assert not fold.shows_display(update), "what is not shown was cleared, too"
    fold.add(update)
    assert _pictures(fold) == [((0,), "new")]
