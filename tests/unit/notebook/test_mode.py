"""`%mesh on`: which cells become %%mesh cells."""

from monarch_nb.notebook.mode import ANNOUNCE, MeshMode


def transformed(mode: MeshMode, cell: str) -> str:
    return "".join(mode(cell.splitlines(keepends=True)))


def test_a_cell_is_for_the_ranks_while_it_is_on() -> None:
    mode = MeshMode()
    assert transformed(mode, "x = 1\n") == "x = 1\n"
    mode.start(None)
    assert transformed(mode, "x = 1\ny\n") == f"%%mesh {ANNOUNCE}\nx = 1\ny\n"
    mode.pre_execute()
    assert transformed(mode, "x\n") == "x\n", "code inside a cell is not a cell"
    mode.pre_execute()
    mode.post_execute()
    assert transformed(mode, "x\n") == "x\n"
    mode.post_execute()
    mode.post_execute()  # an empty cell ends without having begun
    mode.start("0, 2-3")
    assert transformed(mode, "%%time\nx\n") == f"%%mesh {ANNOUNCE} --targets=0,2-3\n%%time\nx\n"
    mode.stop()
    assert transformed(mode, "x\n") == "x\n"


def test_our_own_cells_stay_in_the_kernel() -> None:
    for cell in (
        "%%mesh -t 0\nx\n",
        "%mesh off\n",
        "# back\n\n%mesh off\n",
        "%mesh?\n",
        "losses = %mesh pull losses\n",
        "%reload_ext monarch_nb\n",
        "# only a comment\n",
    ):
        mode = MeshMode()
        mode.start(None)
        assert transformed(mode, cell) == cell


def test_local_is_an_ordinary_cell() -> None:
    for on in (True, False):
        mode = MeshMode()
        if on:
            mode.start(None)
        assert transformed(mode, "%%local\nx = 1\n") == "\nx = 1\n"
        assert transformed(mode, "%%local\n%%time\nx\n") == "%%time\nx\n"
        assert transformed(mode, "%%local x\ny\n").endswith("%%local x\ny\n")
