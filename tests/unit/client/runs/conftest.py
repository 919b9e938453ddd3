"""A run with its nodes, for one test."""

import pytest

from unit.client.runs.run_harness import Harness


@pytest.fixture
async def harness() -> Harness:
    return Harness()
