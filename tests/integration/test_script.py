"""README's script, and what a rank must not have loaded."""

import re
import subprocess
import sys
from pathlib import Path

import monarch_nb
from monarch_nb.provision import Node

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_script_of_the_readme_runs(shared_pool: list[Node], tmp_path: Path) -> None:
    [script] = re.findall(r"## In a script\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    program = tmp_path / "script.py"
    program.write_text(script)
    run = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=100)
    expected = 2 * "[0, 2, 4, 6, 8, 10, 12, 14]\n"
    assert (run.stdout, run.stderr, run.returncode) == (expected, "", 0)
    assert monarch_nb.list_reservations() == []


def test_a_rank_has_torch_but_neither_grpc_nor_a_server(shared_pool: list[Node]) -> None:
    reservation = monarch_nb.reserve("imports", procs=1)
    try:
        [loaded] = reservation.mesh.run("import sys; sorted({name.partition('.')[0] for name in sys.modules})").values
    finally:
        reservation.release()
    assert "torch" in loaded
    assert not {"grpc", "jupyter_server", "tornado"} & set(loaded)
