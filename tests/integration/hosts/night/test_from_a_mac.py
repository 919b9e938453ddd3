"""A client on a Mac, as far as Linux can show it, uses a pool of hosts, which are Linux."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mac
from integration.hosts.lab import Lab
from integration.servers import Server
from monarch_nb import list_reservations
from monarch_nb.config import HOME_VARIABLE, POOL_VARIABLE

SCRIPT = """
import threading, time
from pathlib import Path
import monarch_nb

dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[], pool="lab", files=".")
assert dev.mesh.run("import model; model.width * (rank + 1)").values == [8, 16]
Path("model.py").write_text("width = 16\\n")
assert dev.mesh.run("model.width").values == [16, 16], "what is saved is there when a cell runs"
dev.mesh.run("open(f'result-{rank}', 'w').write(str(model.width)); print('wrote', rank)")
dev.fetch("result-1", to="from-rank-1", rank=1)
print(Path("from-rank-1").read_text())
dev.mesh.run("import os; os.remove(f'result-{rank}')")  # else it is kept
print(*sorted(record.text.strip() for record in dev.mesh.logs(lines=0) if "wrote" in record.text))

run = dev.mesh.submit("import time\\nprint('under way')\\nwhile True: time.sleep(0.01)")
assert len([record for _, record in zip(range(2), dev.mesh.logs(run=run.number, follow=True))]) == 2
assert sorted(run.interrupt().stopped) == [0, 1]
assert monarch_nb.attach("dev", pool="lab").mesh.run("rank").values == [0, 1], "another kernel finds it"
try:
    dev.mesh.run("import os, signal\\nif rank == 1: os.kill(os.getpid(), signal.SIGBUS)")
except monarch_nb.errors.RunFailed as error:
    print(error.failures[1].message.partition(":")[0])
dev.release()
"""

MAGICS = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()

def run(cell):
    with capture_output() as captured:
        result = shell.run_cell(cell)
    shown = captured.stdout + "".join(str(output.data.get("text/plain", "")) for output in captured.outputs)
    assert result.success, (cell, shown)
    return shown

run("%load_ext monarch_nb")
with capture_output() as captured:
    refused = shell.run_cell("%mesh reserve dev --procs 1")
shown = f"{refused.error_in_exec}{captured.stdout}"
assert "a local pool needs Linux: use a pool of hosts (--pool NAME)" in shown, shown
assert "you have the pool lab: --pool lab" in shown, shown
run("%mesh reserve dev --nodes 2 --procs 1 --preload json --pool lab")
assert "5\\n" in run("%%mesh\\nimport model\\nprint(model.width - 3)")
assert "5" in run("%mesh logs")
assert "dev" in run("%mesh list")
run("%mesh doctor")
run("%mesh release dev")
print("released")
"""


@pytest.fixture
def nodes(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Two nodes that see no files of the client's, whose state lies behind a link, as /tmp is one on a Mac."""
    for _ in range(2):
        lab.start(flags=["--isolate"])
    (tmp_path / "private").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "private")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "tmp" / "monarch-nb-501" / "mac"))
    monkeypatch.delenv(POOL_VARIABLE)
    return lab


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_a_script(project: Path) -> None:
    assert mac.run(SCRIPT, project) == ["16", "wrote 0 wrote 1", "killed by signal 7 (SIGBUS)"]
    assert list_reservations("lab") == []


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_magics(project: Path) -> None:
    assert mac.run(MAGICS, project)[-1] == "released"
    assert list_reservations("lab") == []


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_commands(project: Path) -> None:
    def command(*words: str) -> str:
        return "\n".join(mac.said([str(Path(sys.executable).with_name("monarch-nb")), *words], project))

    assert "host1" in command("status", "--pool", "lab")
    (project / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    linux = ("--env", "PYTHONPATH=")  # what makes a Mac of a Python is there
    assert "rank 1" in command("run", "--pool", "lab", "--nodes", "2", "--procs", "1", *linux, "train.py")
    assert "host2" in command("pool", "list", "lab")
    assert "you have the pool lab" in command("status", "--pool", "local")


@pytest.fixture
def server(nodes: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PYTHONPATH", mac.PATH)
    monkeypatch.setenv(POOL_VARIABLE, "lab")
    (tmp_path / "jupyter").mkdir()
    made = Server(tmp_path / "jupyter")
    yield made
    made.stop()


@pytest.mark.slow
async def test_the_panel(server: Server) -> None:
    browser = await server.browser()
    await browser.until(lambda told: told.view and told.view["pool"]["state"] == "up")
    assert "up" not in await server.ask("forms")
    values = {"name": "dev", "nodes": 2, "kind": "procs", "per_node": 1}
    assert (await server.ask("check", action="reserve", values=values))["ok"]
    reserved = await browser.finish("reserve", values=values)
    await browser.until(lambda told: told.states() == ["idle"] * 2)
    await browser.finish("release", reservation=reserved["reservation"])
    browser.close()
