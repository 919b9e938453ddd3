import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines import templates
from monarch_nb.lines.spreads import spread
from monarch_nb.lines.templates import FOLDS_BY, Kind, default_fold, key_of, keys_of, shape_of, shapes_of


@pytest.mark.parametrize(
    ("one", "other", "by", "share"),
    [
        ("loss 2.31", "loss 12.5", "numbers", True),
        ("loss 2.31", "loss nan", "numbers", True),
        ("10:40:04 ready", "10:41:14 ready", "times", True),
        ("10:40:04 ready in 3", "10:41:14 ready in 4", "numbers", True),
        ("at 0x7f", "at 0x80aa", "numbers", True),
        ("step 5: loss 2.31", "step 6: loss 2.31", "numbers", False),
        ("torch 2.13.0", "torch 2.15.0", "numbers", False),
        ("\x1b[31m5", "\x1b[32m5", "numbers", False),
        ("1.234,5", "1.235,5", "numbers", False),
        ("loss 2.31", "accuracy 2.31", "numbers", False),
        ("10:40:04 loss 2.31", "10:40:04 loss 2.32", "times", False),
        ("x[0:16]", "x[16:32]", "times", False),
        ("elapsed 0:01:10", "elapsed 1:59:59", "times", False),
        ("model v1.1 loaded", "model v1.10 loaded", "numbers", False),
        ("10:40:04", "10:40:05", "equal", False),
        ("1" * 3_000, "2" * 3_000, "numbers", False),
        ("on 10.0.0.1", "on 10.0.0.2", "numbers", False),
        ("45%|████▌   | 45/100 [00:12<00:15]", "50%|█████   | 50/100 [00:13<00:14]", "numbers", True),
        ("x=-3.5e-4", "x=1e5", "numbers", True),
        ("pid 12", "pid=13", "numbers", False),
    ],
)
def test_lines_that_may_share_a_row(one: str, other: str, by: templates.FoldBy, share: bool) -> None:
    assert (key_of(one, by) == key_of(other, by)) is share


_LINES = st.text(st.sampled_from("abz 019.,:-+e[]()|=xnif\x1b[m█µé"), max_size=40)


def test_numbers_that_blanks_make_equally_wide_share_a_row() -> None:
    """As of `{loss:8.4f}`, when some ranks are above 10 and some below."""
    assert (
        len({key_of(f"loss: {loss:8.4f}  mem: {40:5.2f}GiB", "numbers") for loss in (9.5, 10.5, 1234.5, math.nan)}) == 1
    )
    assert spread([(1, f"loss: {9.5:8.4f}"), (2, f"loss: {10.25:8.4f}")]).text == "loss: 9.5000–10.2500"
    assert spread([(1, f"loss: {9.5:8.4f}"), (2, f"loss: {9.5:8.4f}")]).text == "loss:   9.5000"


@given(_LINES, st.randoms(use_true_random=False))
def test_what_is_remembered_of_a_line_is_what_would_be_found(text: str, random: object) -> None:
    """Lines whose digits stand in the same places share a shape: it must not depend on which came first."""
    shape_of("".join("7" if character.isdecimal() and character.isascii() else character for character in text))
    remembered = shape_of(text)
    templates._shapes.clear()
    assert remembered == shape_of(text)


@given(st.lists(_LINES | st.just("a\nb 1") | st.just("7" * 2_500), max_size=6), st.sampled_from(FOLDS_BY))
def test_many_lines_at_once_have_the_keys_that_each_has(texts: list[str], by: templates.FoldBy) -> None:
    assert list(keys_of(texts, by)) == [key_of(text, by) for text in texts]
    assert shapes_of(texts) == [shape_of(text) for text in texts]


@given(_LINES, _LINES)
def test_lines_with_one_key_have_equal_texts_between_their_tokens(one: str, other: str) -> None:
    if key_of(one, "numbers") == key_of(other, "numbers"):
        assert [token.kind for token in shape_of(one).tokens] == [token.kind for token in shape_of(other).tokens]
        literals = [
            [text[start:end] for kind, start, end in shape_of(text).tokens if kind is Kind.LITERAL]
            for text in (one, other)
        ]
        assert literals[0] == literals[1]


def test_a_million_different_templates_take_bounded_memory() -> None:
    for number in range(3 * templates.MAX_KNOWN_SHAPES):
        shape_of(f"{'abcdefghij'[number % 10]}{number:b}".replace("0", "o").replace("1", "l") + " 7")
    assert len(templates._shapes) <= templates.MAX_KNOWN_SHAPES


def test_few_ranks_show_all_their_numbers() -> None:
    assert [default_fold(ranks) for ranks in (1, 8, 9, 128)] == ["times", "times", "numbers", "numbers"]
