"""Arguments of a script arrive byte for byte, in fresh processes and in live ranks, whatever is in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from integration.live import Recorder
from monarch_nb.client.meshes.mesh import Mesh

pytestmark = pytest.mark.shape(nodes=1, procs=1)

ODD = [
    "",
    " ",
    "~",
    "~root",
    "*",
    "--",
    "-",
    "-i",
    "-m",
    "--help",
    "$epoch",
    "ckpt-{epoch}",
    "{1+1}",
    "{{",
    "%d",
    "!ls",
]
TEXTS = st.one_of(
    st.sampled_from(
        [*ODD, "a\nb", "a\r\n", "\t", "it's", '"', "\\", "\\n", "# no", "a; b", "?", "await", "\udcff\udcfe"]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.binary(max_size=8).map(lambda data: os.fsdecode(data.replace(b"\0", b""))),
)
SHOWS = "import os, sys\nprint([os.fsencode(each) for each in sys.argv[1:]])\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("arguments")
    (directory / "shows.py").write_text(SHOWS)
    return directory


@pytest.mark.parametrize("in_place", [False, True], ids=["fresh", "live"])
@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
@given(arguments=st.lists(TEXTS, max_size=6))
@example(arguments=ODD)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_arrive_as_they_are(
    mesh: Mesh, directory: Path, in_place: bool, module: bool, arguments: list[str]
) -> None:
    mesh.run(f"epoch = 7; import sys; sys.path.append({str(directory)!r})")
    environment = {} if in_place else {"PYTHONPATH": str(directory)}
    path, told = "shows" if module else str(directory / "shows.py"), Recorder()
    mesh.run_script(path, *arguments, module=module, in_place=in_place, environment=environment, listener=told)
    flags = ["-m"] if module else []
    asked = subprocess.run(
        [sys.executable, *flags, path, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    assert told.text(0) == asked.stdout


def test_in_live_ranks_what_was_there_is_there_again(mesh: Mesh, directory: Path) -> None:
    mesh.run_script(str(directory / "shows.py"), "--lr", "1", in_place=True)
    assert mesh.run("import sys; __name__, sys.argv").values == [("__main__", ["cell"])]
