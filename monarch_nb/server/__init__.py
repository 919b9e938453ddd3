"""The Jupyter server extension: what JupyterLab's panel asks for, over HTTP and one WebSocket.

extension  its configuration, the panel that it makes, and handlers that authenticate, then ask that panel
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "monarch_nb.server"}]


def _load_jupyter_server_extension(server_app: ServerApp) -> None:
    from monarch_nb.server.extension import MonarchNB

    MonarchNB(parent=server_app).add_handlers(server_app)
