"""Text that can leave a rank."""

from __future__ import annotations

from monarch_nb.worker.text import encodable


def test_encodable() -> None:
    assert encodable("a\udc80é") == "a\\udc80é"
