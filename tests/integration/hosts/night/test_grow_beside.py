"""A reservation gets more nodes, and main stays as it is: a new mesh is over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.hosts.elastic import (
    SUM,
)
from integration.kernels import Kernel
from monarch_nb import reserve
from monarch_nb.cli.main import main


@pytest.mark.slow
@pytest.mark.usefixtures("three")
class TestOnThisMachine:
    def test_from_a_terminal(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        script = tmp_path / "hello.py"
        script.write_text("print('hello')\n")
        reserve("dev", nodes=1, procs=1)

        def says(*words: str, status: int = 0) -> str:
            assert main([*words]) == status
            return capfd.readouterr().out

        assert "monarch-nb run --mesh grown SCRIPT runs a script there" in says("grow", "dev", "--nodes", "2")
        assert "main, grown" in (listed := says("list"))
        assert "dev: host2: held, no ranks of main" in listed
        assert says("run", "dev", "--mesh", "grown", str(script)).splitlines() == ["[0-1] hello"]
        assert "[0-1] hello" in says("logs", "dev", "--mesh", "grown")
        assert "hello" not in says("logs", "dev")
        assert says("stop", "grown", "--of", "dev") == "grown of dev has ended\n"
        assert "dev: host2: held, no ranks\n" in says("list")


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_in_a_notebook(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path / "train.ipynb")
    try:
        kernel.run("%load_ext monarch_nb.notebook")
        kernel.run("%mesh reserve dev --nodes 1 --procs 1")
        kernel.run("%%mesh\nkept = rank + 3")
        said = kernel.run("%mesh grow --nodes 2")
        assert "%%mesh --mesh grown runs a cell there; main stays as it is" in said
        assert "dev has 2 nodes already" in kernel.run("%mesh grow --nodes 2")
        kernel.run(f"%%mesh --mesh grown -o sums\n{SUM}")
        assert kernel.run("sums") == "[(1, None), (1, None)]"
        assert kernel.run("%mesh pull kept") == "[3]"
        assert "grown: 2 ranks more" in kernel.run("%mesh status")
        assert "host2" in kernel.run("%mesh status --mesh grown")
        assert "1 of 1" in kernel.run("%mesh list")
        assert "train.ipynb" not in kernel.run("%mesh ls --node 1")
        kernel.restart()
        said = kernel.run("%load_ext monarch_nb.notebook")
        assert "attached to dev: 2 nodes × 1 proc, 1 rank alive" in said
        assert "and beside main grown" in said
        assert kernel.run("%mesh pull rank --mesh grown") == "[0, 1]"
        assert "grown has ranks there: %mesh stop grown ends them" in kernel.run("%mesh shrink --nodes 1")
        assert "grown of dev has ended" in kernel.run("%mesh stop grown --of dev")
        assert "host2 is given back" in kernel.run("%mesh shrink --nodes 1")
        assert kernel.run("%mesh pull kept") == "[3]"
        kernel.run("%mesh release")
    finally:
        kernel.kill()
