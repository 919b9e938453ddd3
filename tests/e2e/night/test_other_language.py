"""A notebook whose kernel is for another language: ranks run Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect

from e2e.lab import Lab, NotebookPage
from e2e.panel import PanelPage
from monarch_nb.client.reservations.reservation import Reservation

KERNEL = """\
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import launch_new_instance
class Kernel(IPythonKernel):
    language_info = dict(name="other", mimetype="text/plain", file_extension=".o")
launch_new_instance(kernel_class=Kernel)"""


@pytest.fixture
def other_language(workplace: Path) -> str:
    """A kernel that says it is for another language."""
    folder = workplace / "data" / "kernels" / "other"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-c", KERNEL, "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Other", "language": "other"}))
    return "other"


def test_a_notebook_of_another_language_is_told_so(
    lab: Lab, page: Page, held: Reservation, other_language: str
) -> None:
    path = lab.write("other.ipynb", ["print(1)"])
    written = nbformat.read(path, as_version=4)
    written.metadata.kernelspec = {"name": other_language, "display_name": "Other", "language": other_language}
    nbformat.write(written, path)
    page.goto(lab.address(path))
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Other | Idle")
    panel = PanelPage(page)
    panel.show()
    panel.button("Attach notebook").click()
    expect(panel.card("dev")).to_contain_text("other.ipynb has a kernel for other")
    NotebookPage(lab, page, path).run_on_mesh(0)
    expect(page.locator(".Toastify__toast", has_text="has a kernel for other")).to_be_visible()
