"""`%mesh on`: which cells become %%mesh cells."""

import pytest

from monarch_nb.notebook.mode import ANNOUNCE, MeshMode


def transformed(mode: MeshMode, cell: str) -> str:
    return "".join(mode(cell.splitlines(keepends=True)))


def test_off_changes_nothing() -> None:
    assert transformed(MeshMode(), "x = 1\n") == "x = 1\n"


def test_on_puts_the_magic_before_every_cell() -> None:
    mode = MeshMode()
    mode.start(None)
    assert transformed(mode, "x = 1\ny\n") == f"%%mesh {ANNOUNCE}\nx = 1\ny\n"
    mode.start("0, 2-3")
    assert transformed(mode, "%%time\nx\n") == f"%%mesh {ANNOUNCE} --targets=0,2-3\n%%time\nx\n"
    mode.stop()
    assert transformed(mode, "x\n") == "x\n"


@pytest.mark.parametrize(
    "cell",
    [
        "%%mesh -t 0\nx\n",
        "%mesh off\n",
        "# back\n\n%mesh off\n",
        "%mesh?\n",
        "losses = %mesh pull losses\n",
        "%reload_ext monarch_nb\n",
        "# only a comment\n",
    ],
)
def test_our_own_cells_stay_in_the_kernel(cell: str) -> None:
    mode = MeshMode()
    mode.start(None)
    assert transformed(mode, cell) == cell


@pytest.mark.parametrize("on", [True, False])
def test_local_is_an_ordinary_cell(on: bool) -> None:
    mode = MeshMode()
    if on:
        mode.start(None)
    assert transformed(mode, "%%local\nx = 1\n") == "\nx = 1\n"
    assert transformed(mode, "%%local\n%%time\nx\n") == "%%time\nx\n"
    assert transformed(mode, "%%local x\ny\n").endswith("%%local x\ny\n")


def test_code_inside_a_cell_is_not_a_cell() -> None:
    mode = MeshMode()
    mode.start(None)
    mode.pre_execute()
    assert transformed(mode, "x\n") == "x\n"
    mode.pre_execute()
    mode.post_execute()
    assert transformed(mode, "x\n") == "x\n"
    mode.post_execute()
    mode.post_execute()  # an empty cell ends without having begun
    assert transformed(mode, "x\n") != "x\n"
