from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cluster import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make() -> Iterator[MakeCluster]:
    """Makes clusters of (nodes, procs), each with files of its own."""
    with ExitStack() as stack:
        yield lambda *shape, **options: stack.enter_context(Cluster(*shape, **options))
