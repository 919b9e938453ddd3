"""`make site`: built with warnings and dead links as errors, and used in a browser that reaches nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect

from e2e.lab import REPOSITORY

DRAWN = sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if "```mermaid" in path.read_text())


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-j", "2", "-d", folder / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, REPOSITORY / "docs", folder / "site"]
    built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert built.returncode == 0, built.stdout
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder / "site"))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def page(site: str, browser_context: BrowserContext) -> Iterator[Page]:
    """A page of a browser that may ask this site alone."""
    outside: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            outside.append(request.url)

    assert browser_context.browser is not None
    page = browser_context.browser.new_page(color_scheme="dark")  # a process has one playwright at a time
    page.on("request", note)
    yield page
    page.context.close()
    assert not outside


@pytest.mark.slow
def test_the_site_is_read_searched_and_drawn_without_the_network(site: str, page: Page) -> None:
    page.goto(f"{site}panel.html")
    expect(page.locator("img.only-dark").first).to_be_visible()
    expect(page.locator("img.only-light").first).to_be_hidden()
    page.goto(f"{site}search.html?q=reserve")
    expect(page.locator("#search-results li").first).to_be_visible()
    expect(page.locator("#search-results a[href*='magics.html']").first).to_be_visible()
    page.goto(f"{site}reference/monarch_nb.html")
    expect(page.locator("#monarch_nb\\.reserve")).to_be_visible()
    page.goto(f"{site}notebooks/quickstart.html")
    expect(page.get_by_text("8 ranks ready").first).to_be_visible()
    for drawn in DRAWN:
        page.goto(f"{site}{drawn.relative_to(REPOSITORY / 'docs').with_suffix('.html').as_posix()}")
        wanted = drawn.read_text().count("```mermaid")
        expect(page.locator(".mermaid svg:not([aria-roledescription='error'])")).to_have_count(wanted)
