"""Extents and targets: what people type as ranks, and what is printed of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch_nb.errors import TargetError
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.shape import Extent, parse_targets

EXTENT = Extent({"hosts": 2, "procs": 4})

extents = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(
    lambda sizes: Extent({f"dim{i}": size for i, size in enumerate(sizes)})
)


class TestExtent:
    @given(extents)
    def test_points_count_in_row_major_order(self, extent: Extent) -> None:
        points = [tuple(extent.point(rank).values()) for rank in range(extent.size)]
        assert points == sorted(set(points))
        assert all(list(extent.point(rank)) == list(extent) for rank in range(extent.size))

    @given(extents, st.data())
    def test_a_point_selects_its_rank(self, extent: Extent, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, extent.size - 1))
        assert extent.ranks(**extent.point(rank)) == (rank,)

    @given(extents, st.data())
    def test_slices_select_what_python_would(self, extent: Extent, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(extent)))
        chosen = data.draw(st.slices(extent[name]))
        expected = {rank for rank in range(extent.size) if extent.point(rank)[name] in range(extent[name])[chosen]}
        assert set(extent.ranks(**{name: chosen})) == expected

    def test_negative_coordinates_count_from_the_end(self) -> None:
        assert EXTENT.ranks(hosts=-1, procs=-1) == (7,)

    @pytest.mark.parametrize("selection", [{"gpus": 0}, {"hosts": 2}, {"hosts": -3}, {"procs": 4}])
    def test_what_does_not_exist_is_named(self, selection: dict[str, int]) -> None:
        [name] = selection
        with pytest.raises(TargetError, match=name):
            EXTENT.ranks(**selection)

    def test_it_reads_as_people_write_it(self) -> None:
        assert str(EXTENT) == "2 hosts × 4 procs"
        assert EXTENT == {"hosts": 2, "procs": 4}
        assert len({EXTENT, Extent({"hosts": 2, "procs": 4})}) == 1


class TestFormat:
    @given(st.sets(st.integers(0, 63), min_size=1))
    def test_what_is_printed_can_be_typed(self, ranks: set[int]) -> None:
        assert parse_targets(format_ranks(ranks), Extent({"procs": 64})) == tuple(sorted(ranks))

    @given(st.lists(st.integers(0, 20)))
    def test_order_and_repetition_do_not_matter(self, ranks: list[int]) -> None:
        assert format_ranks(ranks) == format_ranks(sorted(set(ranks), reverse=True))

    def test_sentences(self) -> None:
        assert name_ranks([3]) == "rank 3"
        assert name_ranks([5, 0, 1, 2]) == "ranks 0-2,5"


class TestTargets:
    @pytest.mark.parametrize(
        ("text", "ranks"),
        [
            ("0", (0,)),
            ("0,2-3", (0, 2, 3)),
            ("3,0,3", (0, 3)),
            ("-1", (7,)),
            ("2-3", (2, 3)),  # as in Slurm
            ("2:3", (2,)),  # as in Python
            ("::2", (0, 2, 4, 6)),
            ("4:", (4, 5, 6, 7)),
            (":-6", (0, 1)),
            ("::-1", tuple(range(8))),
            ("6:100", (6, 7)),
            ("all", tuple(range(8))),
            (" all ", tuple(range(8))),
            ("[0, 2 - 3]", (0, 2, 3)),
            ("(1,)", None),
            ("hosts=0", (0, 1, 2, 3)),
            ("hosts=0,procs=0:2", (0, 1)),
            ("hosts = -1, procs = ::3", (4, 7)),
            ("procs=1", (1, 5)),
            ("hosts=0, procs=(1, 3)", (1, 3)),  # as in Monarch
            ("hosts=(-1,1),procs=1::2", (5, 7)),
            ("procs=(2)", (2, 6)),
        ],
    )
    def test_forms(self, text: str, ranks: tuple[int, ...] | None) -> None:
        if ranks is None:
            with pytest.raises(TargetError):
                parse_targets(text, EXTENT)
        else:
            assert parse_targets(text, EXTENT) == ranks

    @pytest.mark.parametrize(
        "text",
        [
            *("", "   ", "[]", ",", "0,", ",0", "0,,1", "0-", "--1", "0--1", "1-2-3", "3-2", "x", "0x1", "1.0", "1e0"),
            *("0;1", "0 1", "1 2", "0:1:2:3", "::0", ":x", "rank 0", "all,0", "[0", "0]", "(0]", "None", "½", "+1"),
            *("hosts", "hosts=", "=0", "hosts=x", "hosts=0,", "hosts=0,1", "0,hosts=0", "hosts==0", "hosts=0=0"),
            *(
                "gpus=0",
                "HOSTS=0",
                "hosts=0,hosts=1",
                "hosts=0 1",
                "hosts=::0",
                "hosts=(0,1",
                "hosts=()",
                "hosts=(0:1)",
            ),
        ],
    )
    def test_malformed(self, text: str) -> None:
        with pytest.raises(TargetError):
            parse_targets(text, EXTENT)

    @pytest.mark.parametrize(
        "text", ["8", "-9", "0-8", "7,8", "8:", "0,8:", "5:5", "hosts=2", "procs=-5", "hosts=2:", "hosts=(0,2)"]
    )
    def test_out_of_range(self, text: str) -> None:
        with pytest.raises(TargetError):
            parse_targets(text, EXTENT)

    @given(st.text(max_size=12) | st.text("0123456789-:,=[]() hostspc", max_size=12))
    @example(":-")
    def test_any_text_gives_ranks_of_the_mesh_or_one_clear_error(self, text: str) -> None:
        try:
            ranks = parse_targets(text, EXTENT)
        except TargetError:
            pass
        else:
            assert ranks
            assert list(ranks) == sorted(set(ranks))
            assert set(ranks) <= set(range(8))

    def test_a_message_shows_what_was_typed_and_how_to_write_it(self) -> None:
        with pytest.raises(TargetError, match=r"'0;1'.*0,2-3"):
            parse_targets("0;1", EXTENT)
        with pytest.raises(TargetError, match=r"no rank 9.*0 to 7"):
            parse_targets("3-9", EXTENT)
        with pytest.raises(TargetError, match=r"'gpus'.*hosts, procs"):
            parse_targets("gpus=0", EXTENT)
