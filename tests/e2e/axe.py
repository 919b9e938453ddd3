"""What axe-core says of a page: whom it shuts out."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

from e2e.lab import REPOSITORY

AXE = REPOSITORY / "labextension" / "node_modules" / "axe-core" / "axe.min.js"


def serious_findings(page: Page, selector: str) -> list[str]:
    """What axe-core finds that keeps somebody from using this part of the page."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
        # JupyterLab's body has no height of its own: axe takes its texts for clipped, and would look at no colours.
        page.add_style_tag(content="body { height: 100vh }")
    found: dict[str, Any] = page.evaluate("selector => axe.run(selector)", selector)
    checked = {rule["id"] for kind in ("passes", "violations") for rule in found[kind]}
    assert "color-contrast" in checked, f"axe looked at {checked} only, in {selector}"
    return [
        f"{violation['id']}: {violation['help']}: {node['html'][:200]} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
