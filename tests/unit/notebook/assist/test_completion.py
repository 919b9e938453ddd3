"""What is being completed where, without a shell."""

from monarch_nb.notebook.assist.completion import InBody, InLine, locate, target_words
from monarch_nb.notebook.mode import MeshMode
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from monarch_nb.shape import Extent

CELL_TEXT = "%%mesh -t 2 --no\nimport torch\nmodel.to"


def test_what_is_being_completed() -> None:
    for cell, line, column, place in (
        ("%mesh rel", 0, 9, InLine(MESH, " rel")),
        ("x = 1\n%mesh release d", 1, 15, InLine(MESH, " release d")),
        ("out = %mesh pull lo", 0, 19, InLine(MESH, " pull lo")),
        ("%mesh", 0, 5, None),
        ("%meshes x", 0, 9, None),
        ("print(x)", 0, 8, None),
        (CELL_TEXT, 0, 16, InLine(CELL, " -t 2 --no")),
        (CELL_TEXT, 0, 4, None),
        (CELL_TEXT, 1, 3, InBody("import torch\nmodel.to", 3, "2", None)),
        (CELL_TEXT, 2, 8, InBody("import torch\nmodel.to", 21, "2", None)),
        ("\n%%mesh --targets=0:2\nx", 2, 1, InBody("x", 1, "0:2", None)),
        ("%%mesh --mesh judges -t 1\nx", 1, 1, InBody("x", 1, "1", "judges")),
        ("%%mesh --mesh='two words'\nx", 1, 1, InBody("x", 1, None, "two words")),
        ("%%mesh -o 'x\ny", 1, 1, InBody("y", 1, None, None)),
        ("%%time\nx", 1, 1, None),
    ):
        assert locate(cell, line, column, MeshMode()) == place


def test_what_is_being_completed_while_on() -> None:
    mode = MeshMode()
    mode.start("3", "judges")
    assert locate("import os\nos.pa", 1, 5, mode) == InBody("import os\nos.pa", 15, "3", "judges")
    assert locate("%%local\nx", 1, 1, mode) is None
    assert locate("%mesh o", 0, 7, mode) == InLine(MESH, " o")


def test_targets_complete() -> None:
    extent = Extent({"hosts": 2, "procs": 2})
    assert target_words(extent, "") == ["all", "hosts=", "procs=", "0", "1", "2", "3"]
    assert target_words(extent, "0,") == ["0,0", "0,1", "0,2", "0,3"]
    assert target_words(extent, "hosts=0,p") == ["hosts=0,procs="]
    assert target_words(Extent({"hosts": 16, "procs": 8}), "1") == []
