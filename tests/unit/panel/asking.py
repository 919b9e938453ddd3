"""Requests by name, as tests make them."""

from __future__ import annotations

from typing import Any

from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from unit.panel.fake_pool import Inbox


def ask(panel: Panel, name: str, **body: Any) -> Any:
    answer = panel.handle(name, body).result(10)
    assert "result" in answer, answer
    return answer["result"]


def refused(panel: Panel, name: str, **body: Any) -> Json:
    answer = panel.handle(name, body).result(10)
    assert "error" in answer, answer
    return dict(answer["error"])


def finished(panel: Panel, name: str, **body: Any) -> Json:
    """Start a job and return it as it ended."""
    inbox = Inbox()
    subscription = panel.subscribe(inbox.deliver).result(10)
    try:
        job = ask(panel, name, **body)["job"]
        while job["state"] == "running":
            event = inbox.any()
            if event["type"] == "job":
                job = event["job"]
        return dict(job)
    finally:
        subscription.close_soon()
