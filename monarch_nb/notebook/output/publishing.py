"""What a view needs besides events: a cell to be shown in, or a terminal, and somebody who calls it later."""

from __future__ import annotations

import contextvars
import secrets
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.display import publish_display_data

from monarch_nb.client.connections.bridge import background_loop
from monarch_nb.ground import escapes
from monarch_nb.ground.printing import put
from monarch_nb.notebook.output.view import Publish


def printing(*, colours: bool = True) -> Publish:
    """Return what prints the text of each bundle below the one before, on the stream that its metadata name.

    Args:
        colours: the terminal knows their codes; else they are left out.
    """

    def publish(bundle: dict[str, Any], update: bool, number: int = 0, metadata: dict[str, Any] | None = None) -> None:
        text = bundle["text/plain"]
        stream = sys.stderr if (metadata or {}).get("name") == "stderr" else sys.stdout
        put(f"{text if colours else escapes.strip(text)}\n", stream)

    return publish


def displaying() -> Callable[[], Publish]:
    """Return what makes displays of the cell that executes now: each shows bundles, one in place of the one before."""
    publish_to_cell: Any = publish_display_data  # IPython's has no types
    # ipykernel 7 keeps the cell that a message belongs to in the context. A first display belongs to this cell; an
    # update finds its display by id, but nbclient takes it only when it belongs to the cell that runs then.
    this_cell = contextvars.copy_context()

    def make() -> Publish:
        token = secrets.token_hex(16)

        def publish(
            bundle: dict[str, Any], update: bool, number: int = 0, metadata: dict[str, Any] | None = None
        ) -> None:
            context = contextvars.Context() if update else this_cell.copy()
            transient = {"display_id": f"{token}-{number}"}
            context.run(partial(publish_to_cell, bundle, metadata, transient=transient, update=update))

        return publish

    return make


def call_later(delay_s: float, callback: Callable[[], None]) -> None:
    """Call back after a while, on the client's background thread. From any thread."""
    loop = background_loop()
    loop.call_soon_threadsafe(loop.call_later, delay_s, callback)
