"""The panel in JupyterLab: reserve, attach, watch, restart, release; and what goes on meanwhile elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Response, expect

import monarch_nb
from e2e.lab import WAIT_MS, Lab, NotebookPage
from e2e.panel import LogPage, PanelPage
from gpus import FakeGpus
from integration.live import Gate, kill, pids_of, started
from monarch_nb.client.reservations.reservation import Reservation

ATTACH = "%load_ext monarch_nb\n%mesh attach dev"
LEFT = r"(8 h|7 h \d+ min) left"
HANG = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()"


def sources(notebook: NotebookPage) -> list[str]:
    return [cell.source for cell in notebook.save().cells]


def test_nodes_are_reserved_used_and_released_without_a_magic(
    notebook: NotebookPage, panel: PanelPage, make_gate: Callable[[], Gate]
) -> None:
    gate = make_gate()
    panel.reserve(name="dev", nodes="2", kind="procs", per_node="2", time="8h")
    expect(panel.card("dev")).to_contain_text("2 nodes × 2 procs")
    expect(panel.card("dev")).to_contain_text(re.compile(LEFT))
    panel.wait_for_state("idle", 0, 1, 2, 3)

    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("is attached")
    panel.button("Close message").click()
    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("is attached")  # else it would make its cell the active one later
    assert sources(notebook) == [ATTACH, "rank"]
    notebook.wait_for_text(0, "attached to dev: 2 nodes × 2 procs, 4 ranks alive")

    notebook.write(1, f"{gate.wait}\nrank * 10")
    notebook.run_on_mesh(1)
    panel.wait_for_state("running", 0, 1, 2, 3)
    expect(panel.status).to_have_text(re.compile(rf"^dev · 4 ranks · 4 running · {LEFT}$"))
    expect(panel.card("dev")).to_contain_text("with open(")
    gate.open(4)
    notebook.wait_for_end(1)
    panel.wait_for_state("idle", 0, 1, 2, 3)
    expect(panel.status).to_have_text(re.compile(rf"^dev · 4 ranks · {LEFT}$"))
    assert "Out[3]: 30" in notebook.text(1)

    panel.button("Release…").click()
    expect(panel.question).to_contain_text(re.compile("the variables of 4 ranks, .* in memory"))
    panel.page.keyboard.press("Escape")
    expect(panel.question).to_have_count(0)
    panel.button("Release…").click()
    panel.button("Release").click()
    expect(panel.card("dev")).to_have_count(0)
    expect(panel.root).to_contain_text("You hold nothing")
    assert monarch_nb.list_reservations() == []


def test_the_form_says_whether_it_fits_and_why_not(panel: PanelPage) -> None:
    panel.open_form(name="dev", nodes="2", kind="procs", per_node="4")
    verdict = panel.form.get_by_role("status")
    expect(verdict).to_have_text("fits: node0, node1; 0 procs free after that")
    panel.fill(per_node="5")
    expect(verdict).to_have_text("the local pool becomes 2 nodes × 5 procs for it")
    other = monarch_nb.reserve("other", procs=1)
    expect(panel.form).to_contain_text("only 0 of 2 nodes can take 5 procs")
    expect(panel.form.locator("[type=submit]")).to_be_disabled()
    other.release()
    panel.fill(per_node="2", name="my dev 🎉")
    expect(panel.field("Name")).to_have_attribute("aria-invalid", "true")
    panel.fill(name="dev", time="soon")
    expect(panel.field("Time")).to_have_attribute("aria-invalid", "true")
    panel.fill(time="", nodes="")
    expect(panel.field("Nodes")).to_have_attribute("aria-invalid", "true")
    panel.fill(nodes="2")
    expect(verdict).to_have_text("fits: node0, node1; 4 procs free after that")
    panel.button("Close").click()
    assert monarch_nb.list_reservations() == []


def test_ranks_that_wait_fail_and_die_are_seen_and_one_is_restarted(panel: PanelPage, held: Reservation) -> None:
    panel.wait_for_state("idle", 0, 1, 2, 3)
    waiting, _ = started(held.mesh.select([0, 1]), HANG.replace("'gloo'", "'gloo', rank=rank, world_size=3"))
    with pytest.raises(monarch_nb.errors.RunFailed):
        held.mesh.select([2]).run("1 / 0")
    panel.wait_for_state("waiting", 0, 1)
    panel.wait_for_state("failed", 2)
    expect(panel.card("dev")).to_contain_text("ZeroDivisionError")
    kill(pids_of(held.mesh)[3])
    panel.wait_for_state("dead", 3)
    told = re.compile(r"rank 3 of dev: .*SIGKILL")
    expect(panel.notice(told)).to_be_visible()
    expect(panel.page.locator(".jp-toast-content, .Toastify__toast", has_text=told).first).to_be_visible()

    panel.button("Interrupt").click()
    panel.wait_for_state("idle", 0, 1)
    panel.rank(3).click()
    panel.button("Restart… rank 3").click()
    expect(panel.question).to_contain_text("Restart rank 3?")
    panel.button("Restart").click()
    panel.wait_for_state("idle", 3)
    waiting.wait()


def test_nodes_are_added_and_given_back_when_that_is_what_one_wants(panel: PanelPage) -> None:
    dev = monarch_nb.reserve("dev", nodes=1, procs=2)
    dev.mesh.run("kept = 3")
    world = "import os; (int(os.environ['WORLD_SIZE']), globals().get('kept'))"
    panel.wait_for_state("idle", 0, 1)
    panel.button("Resize…").click()
    verdict = panel.form.get_by_role("status")
    expect(verdict).to_have_text("node1 besides; grown has 4 ranks then, others stay")
    panel.fill(nodes="7")
    expect(panel.form).to_contain_text("only 1 of 1 other node can take 2 procs")
    panel.fill(nodes="2")
    panel.submit()
    expect(panel.card("dev")).to_contain_text("dev has 2 nodes: node1 is new")
    expect(panel.card("dev")).to_contain_text("2 nodes × 2 procs")
    panel.button("grown").click()
    panel.wait_for_state("idle", 0, 1, 2, 3)
    dev = monarch_nb.attach("dev")
    assert dev.mesh.run(world).values == [(2, 3)] * 2, "main stays as it is"
    assert dev.meshes["grown"].run(world).values == [(4, None)] * 4
    dev.stop_mesh("grown")
    expect(panel.button("grown")).to_have_count(0)

    panel.button("Resize…").click()
    panel.fill(nodes="1")
    expect(verdict).to_have_text("node1 given back")
    panel.submit()
    expect(panel.question).to_contain_text("Nothing is lost: all ranks stay as they are.")
    panel.button("Shrink").click()
    expect(panel.card("dev")).to_contain_text("dev has 1 node: node1 is given back")
    expect(panel.card("dev")).to_contain_text("1 node × 2 procs")


def test_a_hang_is_explained_and_ended(panel: PanelPage, held: Reservation) -> None:
    run, _ = started(held.mesh, f"import os\nif rank == 0:\n    raise ValueError('bad batch')\n{HANG}", on_error="wait")
    hang = panel.card("dev").get_by_role("alert")
    expect(hang).to_contain_text(re.compile(r"^ranks 1-3 wait in \w+ \(.*\) for rank 0, which raised ValueError\. "))
    expect(panel.status).to_have_text("dev · 4 ranks · 1 failed · 3 waiting · not attached")
    panel.button("Release…").click()
    expect(panel.question).to_contain_text("which has run for")
    panel.button("Keep").click()
    panel.button("Interrupt the hung ranks 1-3").click()
    run.wait()
    panel.wait_for_state("idle", 1, 2, 3)
    panel.wait_for_state("failed", 0)
    expect(hang).to_have_count(0)
    expect(panel.card("dev")).to_contain_text("failed on 0, interrupted on 1-3")
    panel.button("Restart…").click()
    panel.button("Restart").click()
    panel.wait_for_state("idle", 0)
    expect(panel.card("dev")).to_contain_text("ended by a restart on 0, interrupted on 1-3")


def test_what_a_notebook_is_attached_to_is_marked_and_said_once(
    notebook: NotebookPage, panel: PanelPage, held: Reservation
) -> None:
    monarch_nb.reserve("newer", nodes=1, procs=1, notebook=str(notebook.path))
    marked = panel.root.locator(".mnb-card-current")
    for name in ("dev", "newer", "dev"):
        panel.card(name).get_by_role("button", name="Attach notebook").click()
        expect(panel.card(name)).to_contain_text("is attached")
        expect(marked).to_have_count(1)
        expect(marked).to_have_attribute("aria-label", f"Reservation {name}")
        expect(panel.status).to_contain_text(f"{name} · ")
        assert "already loaded" not in notebook.text(0)
        panel.card(name).get_by_role("button", name="Close message").click()


def saves_the_log(reply: Response) -> bool:
    """Whether this saved a layout that has a log; JupyterLab saves layouts a moment after they change."""
    if "/api/workspaces/" not in reply.url or reply.request.method != "PUT":
        return False
    return "monarch-nb-log" in json.dumps(reply.request.post_data_json["data"].get("layout-restorer:data"))


def test_a_reload_brings_panel_and_log_back(notebook: NotebookPage, panel: PanelPage, held: Reservation) -> None:
    held.mesh.run("print('step', 1)")
    log = LogPage(panel.page)
    with panel.page.expect_response(saves_the_log, timeout=WAIT_MS):
        panel.button("Log").click()
    expect(log.line("step 1")).to_be_visible()
    panel.page.reload()
    panel.wait_until_live()
    panel.wait_for_state("idle", 0, 1, 2, 3)
    expect(log.line("step 1")).to_be_visible()
    expect(panel.status).to_have_text("dev · 4 ranks · not attached")


def test_a_restarted_server_finds_everything_again(lab: Lab, panel: PanelPage, held: Reservation) -> None:
    held.mesh.run("print('step', 1)")
    panel.button("Log").click()
    log = LogPage(panel.page)
    expect(log.line("step 1")).to_be_visible()
    dialog = panel.page.locator(".jp-Dialog", has_text="Server Connection Error")
    panel.page.add_locator_handler(dialog, lambda: dialog.locator(".jp-Dialog-button").last.click())
    lab.stop()
    expect(panel.root).to_contain_text("The Jupyter server does not answer")
    held.mesh.run("print('step', 2)")
    lab.start()
    panel.wait_until_live()
    panel.wait_for_state("idle", 0, 1, 2, 3)
    held.mesh.run("print('step', 3)")
    expect(log.line("step 3")).to_be_visible()
    expect(log.line("step 2")).to_be_visible()
    panel.button("Stacks").click()
    expect(panel.root.get_by_role("region", name="Stacks")).to_contain_text("ranks 0-3")
    panel.page.close()  # it answers dialogs


def test_a_notebook_without_a_kernel_is_told_so(
    lab: Lab, notebook: NotebookPage, panel: PanelPage, held: Reservation
) -> None:
    lab.shut_kernels_down()
    expect(panel.page.locator("#jp-main-statusbar")).to_contain_text("Disconnected")
    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("has no kernel: choose one with")
    notebook.run_on_mesh(0)
    expect(panel.page.locator(".Toastify__toast", has_text="has no kernel")).to_be_visible()
    assert sources(notebook) == ["rank"]


def test_gpus_are_a_map_of_what_they_do_and_who_holds_them(panel: PanelPage, gpus: FakeGpus) -> None:
    free = panel.slot("node0", 7)
    figures = re.compile(r"^node0 GPU 7: free · \d+ % · .* of 151 GB · \d+ °C · \d+ of 700 W · Stand-in H200$")
    expect(free).to_have_accessible_name(figures)
    before = free.get_attribute("aria-label")
    expect(free).not_to_have_accessible_name(before)
    free.evaluate("slot => slot.dataset.same = 'yes'")
    panel.reserve(name="dev", nodes="1", kind="gpus", per_node="2")
    expect(panel.slot("node0", 1)).to_have_accessible_name(re.compile(r"^node0 GPU 1: dev rank 1 · "))
    gpus.set(lost=[7])
    expect(free).to_have_accessible_name(re.compile(r"GPU 7 has fallen off the bus"))
    gpus.set()
    expect(free).to_have_accessible_name(figures)
    expect(free).to_have_attribute("data-same", "yes")  # nothing was rendered anew
