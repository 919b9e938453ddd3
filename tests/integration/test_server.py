"""A Jupyter server with the panel's extension on a real pool: what a browser asks for, from reserve to release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.live import TIMEOUT_S, Gate, kill, started
from integration.servers import Server
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.provision import MOST_NODES, Node

VALUES = {"name": "dev", "nodes": 2, "kind": "procs", "per_node": 2, "time": "2h", "idle": "1h"}


@pytest.fixture(scope="module")
def server(shared_pool: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


@pytest.fixture
def steps(server: Server) -> Iterator[Mesh]:
    """4 ranks whose lines differ in times and numbers, of which one has nan once, after rank 0 has printed more."""
    held = reserve("steps", nodes=2, procs=2, preload=[])
    held.mesh.run(PRINT_STEPS)
    yield held.mesh
    held.release()


async def test_from_reserve_to_release(server: Server, gate: Gate) -> None:
    browser = await server.browser()
    await browser.until(lambda told: told.view and told.view["pool"]["state"] == "up")
    forms = await server.ask("forms")
    assert {field["name"]: field["maximum"] for field in forms["reserve"]["fields"]}["nodes"] == MOST_NODES
    assert (await server.ask("check", action="reserve", values=VALUES))["ok"]

    notebook = server.root / "a.ipynb"
    notebook.write_text("{}")
    reserved = await browser.finish("reserve", values=VALUES, notebook="a.ipynb")
    reservation = reserved["reservation"]
    await browser.until(lambda told: told.states() == ["idle"] * 4)
    held = browser.view["reservations"][reservation]
    assert (held["notebook"], held["notebook_path"], held["time_s"]) == (str(notebook), "a.ipynb", 7200.0)
    # Nobody is attached: the server does not count.
    await browser.until(lambda told: told.view["reservations"][reservation]["idle_left_s"] < 3600.0)
    slots = [slot["rank"] for node in browser.view["nodes"].values() for slot in node["slots"] if slot["kind"] == "cpu"]
    assert slots == [0, 1, None, None, 2, 3, None, None]

    dev = attach("dev")
    assert str(server.root) == dev.mesh.pull("__import__('os').getcwd()")[0]
    run, _ = started(dev.mesh, f"{gate.wait}\nif rank == 2: raise KeyError('lost')")
    await browser.until(lambda told: told.states() == ["running"] * 4)
    assert browser.view["reservations"][reservation]["meshes"][0]["runs"][0]["state"] == "running"
    text = (await server.ask("lost", reservation=reservation))["text"]
    # The memory is told as soon as it is known.
    assert re.match(r"You lose:\n• the variables of 4 ranks(, .* in memory)?\n• run 2 \(", text)

    stacks = await browser.finish("stacks", reservation=reservation)
    assert "_gate.read" in stacks["groups"][0]["stack"]
    told = await browser.finish("interrupt", reservation=reservation, ranks="0-3")
    assert told["text"].startswith("interrupted run ")
    assert "on ranks 0-3" in told["text"]
    assert run.wait(TIMEOUT_S)
    await browser.until(lambda told: set(told.states()) <= {"idle", "failed"})
    run.collected()
    await browser.until(lambda told: [each["state"] for each in told.runs] == ["finished"])

    kill(browser.ranks[3]["pid"])
    await browser.until(lambda told: told.states()[3:] == ["dead"])
    await browser.until(lambda told: any("rank 3 of dev: killed by signal 9" in n["text"] for n in told.notices))
    await browser.finish("restart", reservation=reservation, ranks="3")
    await browser.until(lambda told: told.states()[3:] == ["idle"])

    left = await browser.finish("extend", reservation=reservation, values={"by": "1h"})
    assert left["time_left_s"] > 7200.0
    await browser.until(lambda told: told.view["reservations"][reservation]["time_s"] == 10800.0)
    lines = (await server.ask("attach_lines", reservation=reservation))["code"]
    assert lines == "%load_ext monarch_nb\n%mesh attach dev"

    await browser.finish("release", reservation=reservation)
    await browser.until(lambda told: not told.view["reservations"])
    assert (await server.fetch("release", reservation=reservation))[0] == 404
    browser.close()


async def test_logs(server: Server) -> None:
    browser = await server.browser()
    reservation = (await browser.finish("reserve", values=VALUES))["reservation"]
    dev = attach("dev")
    mesh = dev.mesh
    mesh.run("for step in range(1000): print('step', step, rank if step % 100 == 7 else '')", cell_number=5)
    log = await server.ask("log_open", mesh=mesh.id)
    assert await browser.counted(log) == 1000 + 3 * 10
    shown = await server.ask("log_rows", log=log["log"], first=7, count=3)
    assert [(run["cell_number"], run["first_row"]) for run in shown["runs"]] == [(5, 0)]
    assert [(row["ranks"], row["text"].strip()) for row in shown["rows"]] == [
        ("0-3", "step 6"),
        ("0", "step 7 0"),
        ("1", "step 7 1"),
    ]
    assert (await server.ask("log_find", log=log["log"], text="STEP 7 1", **{"from": 0}))["row"] == 9
    errors = await server.ask("log_open", mesh=mesh.id, streams="stderr")
    found = await server.ask("log_open", mesh=mesh.id, search="7 [23]$", regex=True)
    assert (await browser.counted(errors), await browser.counted(found)) == (0, 2 * 10)
    browser.logs.clear()
    mesh.run("import sys; print('late', file=sys.stderr)")
    rows: list[Any] = []
    while [row["ranks"] for row in rows] != ["0-3"]:  # each node tells of its ranks when it comes to it
        await browser.until(lambda told: told.logs.pop(errors["log"], None))
        rows = (await server.ask("log_rows", log=errors["log"], first=1, count=10))["rows"]
    assert (rows[0]["stream"], rows[0]["text"]) == ("err", "late")
    assert await server.ask("log_close", log=log["log"]) == {}
    assert (await server.fetch("log_rows", log=log["log"], first=0, count=1))[0] == 404
    assert (await server.fetch("log_open", mesh=mesh.id, search="(", regex=True))[0] == 400
    await browser.finish("release", reservation=reservation)
    await browser.until(lambda told: "error" in told.logs.get(errors["log"], {}))  # it was popped above
    assert (await server.fetch("log_open", mesh=mesh.id))[0] == 404
    browser.close()


PRINT_STEPS = """\
import sys
if rank == 0:
    print('only rank 0 says this\\n' * 50, end='')
print(f'09:00:{rank:02} begun')
for step in range(50):
    loss = float('nan') if (step, rank) == (7, 2) else 7.8 + rank / 1000
    print(f'09:00:{rank:02} step: {step} loss: {loss:.3f}')
print('late on', rank, file=sys.stderr)"""


@pytest.mark.parametrize(("fold", "rows"), [("numbers", 102), (None, 255)])
async def test_logs_fold_as_asked_and_rows_tell_the_own_line_of_each_rank(
    server: Server, steps: Mesh, fold: str | None, rows: int
) -> None:
    browser = await server.browser()
    log = await server.ask("log_open", mesh=steps.id, run=steps.past_runs()[-1].number, fold=fold)
    assert log["fold"] == (fold or "times"), "by the number of ranks"
    assert await browser.counted(log) == rows
    row = (await server.ask("log_find", log=log["log"], text="step: 9 ", **{"from": 0}))["row"]
    [told] = (await server.ask("log_rows", log=log["log"], first=row, count=1))["rows"]
    own = (await server.ask("log_row", log=log["log"], row=row))["lines"]
    if fold == "numbers":
        assert (told["ranks"], told["folded"]) == ("0-3", True)
        assert told["text"].endswith(" step: 9 loss: 7.800–7.803")
        [marked] = (await server.ask("log_rows", log=log["log"], first=row - 2, count=1))["rows"]
        assert marked["apart"] == [{"ranks": "2", "text": "loss: nan"}]
    else:
        assert not told.get("folded", False)
    ranks = range(4) if fold == "numbers" else [int(told["ranks"])]
    assert [each["text"] for each in own] == [f"09:00:{r:02} step: 9 loss: {7.8 + r / 1000:.3f}" for r in ranks]
    browser.close()


async def test_a_row_of_a_cell_is_read_from_the_logs(server: Server, steps: Mesh) -> None:
    run, text = steps.past_runs()[-1].number, "09:00:00 step: 9 loss: 7.800–7.803"
    for lines in ("60:0;10:1-3", "50:0;13:1-3"):  # exactly, and some lines off
        own = (await server.ask("own_lines", mesh=steps.id, run=run, lines=lines, text=text))["lines"]
        assert [each["text"] for each in own] == [f"09:00:{r:02} step: 9 loss: {7.8 + r / 1000:.3f}" for r in range(4)]
    own = (await server.ask("own_lines", mesh=steps.id, run=run, lines="400:0;10:1-3", text=text))["lines"]
    assert [each.get("absent", "") for each in own] == ["its log has no such line near here", "", "", ""]
    assert (await server.fetch("own_lines", mesh=steps.id, run=run, lines="9:0-", text=text))[0] == 400
    assert (await server.fetch("own_lines", mesh="gone", run=run, lines="9:0", text=text))[0] == 404


async def test_curves_are_read_on_as_often_as_they_are_asked_for(server: Server, steps: Mesh, gate: Gate) -> None:
    printed = steps.past_runs()[-1].number
    run, _ = started(steps, f"print('step: 1 tps: 5')\n{gate.wait}\nprint('step: 2 tps:', 6 + rank)")
    while not (found := await server.ask("curves_found", mesh=steps.id, run=printed))["is_all"]:
        pass
    assert [each["number"] for each in found["runs"]] == [printed + 1, printed]
    assert [each["is_over"] for each in found["runs"]] == [False, True]
    assert [each["name"] for each in found["names"] if not each["is_step"]] == ["loss", "only_rank"]
    assert found["suggested"] == ["loss"]

    wanted = {"mesh": steps.id, "runs": [printed], "names": ["loss"], "ranks": "0-1"}
    while (told := await server.ask("curves_read", **wanted))["again_s"] is not None:
        pass
    [chart] = told["curves"]["charts"]
    assert (chart["name"], chart["x"], chart["lines"][0]["xs"]) == ("loss", "step", list(range(50)))
    assert (await server.ask("curves_read", **wanted, since=told["version"])).keys() == {"version", "again_s"}
    refused = await server.fetch("curves_read", **{**wanted, "names": ["los"]})
    assert (refused[0], "nearest: loss" in str(refused[1])) == (400, True)

    live = {"mesh": steps.id, "runs": [printed + 1, printed], "names": ["tps"]}
    told = await server.ask("curves_read", **live)
    assert told["again_s"] is not None
    gate.open(4)
    run.wait(TIMEOUT_S)
    while told["again_s"] is not None:
        told = {"curves": told["curves"]} | await server.ask("curves_read", **live, since=told["version"])
    [line] = told["curves"]["charts"][0]["lines"]
    assert (line["ys"], line["band"][1:]) == ([5, 6], [[6], [9]])
    assert ["no line has tps" in str(each["notes"]) for each in told["curves"]["runs"]] == [False, True]


async def test_a_pool_is_started_and_a_start_is_cancelled(pool_home: Path, tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        browser = await server.browser()
        await browser.until(lambda told: told.view and told.view["pool"]["state"] == "down")
        job = (await server.ask("up", values={"nodes": 1, "procs": 2, "gpus": "none"}))["job"]
        await server.ask("cancel", job=job["id"])
        await browser.until(lambda told: told.jobs.get(job["id"], job)["state"] == "cancelled")
        await browser.until(lambda told: told.view["pool"]["state"] == "down" and not told.view["nodes"])
        assert (await browser.finish("up", values={"nodes": 1, "procs": 2, "gpus": "none"})) == {"nodes": 1}
        await browser.until(lambda told: told.view["nodes"].get("node0", {}).get("state") == "ok")
        assert (await browser.finish("down")) == {"nodes": 1}
        await browser.until(lambda told: told.view["pool"]["state"] == "down")
        assert (await server.fetch("release", reservation="x"))[0] == 503
        browser.close()
    finally:
        server.stop()


async def test_a_reservation_that_is_cancelled_gives_everything_back(server: Server) -> None:
    browser = await server.browser()
    job = (await server.ask("reserve", values=VALUES))["job"]
    await server.ask("cancel", job=job["id"])
    ended = await browser.until(
        lambda told: told.jobs.get(job["id"], job)["state"] != "running" and told.jobs[job["id"]]
    )
    if ended["state"] == "done":  # it was faster
        await browser.finish("release", reservation=ended["result"]["reservation"])
    await browser.until(lambda told: told.view and not told.view["reservations"])
    assert all(node["procs"]["free"] == 4 for node in browser.view["nodes"].values())
    browser.close()
