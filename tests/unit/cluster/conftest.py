from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters of (nodes, procs), each with files of its own."""
    with ExitStack() as stack:
        made: list[Cluster] = []

        def make(nodes: int = 1, procs: int = 1, **options: Any) -> Cluster:
            directory = tmp_path / str(len(made))
            directory.mkdir()
            made.append(stack.enter_context(Cluster(directory, nodes, procs, **options)))
            return made[-1]

        yield make
