"""A node whose part a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.client.connections.scripted import Scripted, serving


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Scripted]:
    """It is reached at unix:TMP_PATH/s."""
    async with serving(tmp_path) as scripted:
        yield scripted
