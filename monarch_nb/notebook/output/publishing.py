"""What a view needs besides events: a terminal to print to, where there is no cell, and somebody who calls it later."""

from __future__ import annotations

import sys
from collections.abc import Callable

from monarch_nb.client.connections.bridge import background_loop
from monarch_nb.ground import escapes
from monarch_nb.notebook.output.view import Publish


def printing(*, colours: bool = True) -> Publish:
    """Return what prints the text of each bundle below the one before.

    Args:
        colours: the terminal knows their codes; else they are left out.
    """

    def publish(bundle: dict[str, str], update: bool) -> None:
        text = bundle["text/plain"]
        sys.stdout.write(f"{text if colours else escapes.strip(text)}\n")
        sys.stdout.flush()

    return publish


def call_later(delay_s: float, callback: Callable[[], None]) -> None:
    """Call back after a while, on the client's background thread. From any thread."""
    loop = background_loop()
    loop.call_soon_threadsafe(loop.call_later, delay_s, callback)
