"""Configuration of the server extension, and where its handlers are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from jupyter_server.utils import url_path_join
from traitlets import Float, Unicode, default
from traitlets.config import Configurable

from monarch_nb.config import default_pool
from monarch_nb.server.handlers import EventsHandler, RequestHandler

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

    from monarch_nb.panel.panels import Panels


class MonarchNB(Configurable):
    """The panel in JupyterLab."""

    pool = Unicode(help="Name of the pool that the panel shows at first: $MONARCH_NB_POOL, or else the local one.").tag(
        config=True
    )

    @default("pool")
    def _default_pool(self) -> str:
        return default_pool()

    refresh_s = Float(
        1.0,
        min=0.2,
        help="How often nodes are asked while somebody looks, in seconds; of more than 64 nodes less often.",
    ).tag(config=True)
    notice_s = Float(
        10.0,
        min=1.0,
        help="How often nodes are asked while JupyterLab is open and nobody looks, in seconds: deaths of ranks and "
        "reservations that end are noticed so often.",
    ).tag(config=True)

    @cached_property
    def panels(self) -> Panels:
        """Made at the first request: gRPC need not be imported before somebody looks."""
        from monarch_nb.panel.panels import Panels

        return Panels(self.pool, root=self._root, refresh_s=self.refresh_s, notice_s=self.notice_s)

    _root = ""

    def add_handlers(self, server_app: ServerApp) -> None:
        """Serve `monarch-nb/…` below the server's base URL."""
        app = server_app.web_app
        base = url_path_join(app.settings["base_url"], "monarch-nb")
        app.settings["monarch_nb"] = self
        self._root = getattr(
            server_app.contents_manager, "root_dir", ""
        )  # it may keep notebooks elsewhere than in files
        app.add_handlers(  # type: ignore[no-untyped-call]
            ".*$",
            [
                (url_path_join(base, r"api/([a-z_]+)"), RequestHandler),
                (url_path_join(base, "events"), EventsHandler),
            ],
        )
