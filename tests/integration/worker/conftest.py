"""One template process for all tests of this folder, fresh ranks for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from integration.live import HAS_FAILED
from integration.worker.harness import RankProcess, TemplateProcess

if TYPE_CHECKING:
    from integration.worker.forked_ranks import ForkedRanks

ForkRanks = Callable[[int], list[RankProcess]]


@pytest.fixture(scope="session")
def shared_template() -> Iterator[TemplateProcess]:
    process = TemplateProcess()
    try:
        process.wait_ready()
        yield process
    finally:
        process.close()


@pytest.fixture
def template(shared_template: TemplateProcess, request: pytest.FixtureRequest) -> Iterator[TemplateProcess]:
    """The shared template, without ranks at the beginning and at the end."""
    yield shared_template
    shared_template.end_children()
    if request.node.stash.get(HAS_FAILED, False):  # there may be answers that nobody read, or no connection
        shared_template.received.clear()
        shared_template.reconnect()


@pytest.fixture
def rank(template: TemplateProcess) -> RankProcess:
    """One rank of a mesh of one."""
    return template.fork(1)[0]


@pytest.fixture
def own_template() -> Iterator[Callable[..., TemplateProcess]]:
    """Makes templates for one test alone: for tests that end them or that choose what they preload."""
    processes: list[TemplateProcess] = []

    def make(*preload: str, environment: dict[str, str] | None = None) -> TemplateProcess:
        processes.append(TemplateProcess(preload, environment))
        return processes[-1]

    yield make
    for process in processes:
        process.close()


@pytest.fixture
def ranks() -> Iterator[ForkedRanks]:
    """As many processes as form a group of torch, which is imported here only: most tests do without."""
    from integration.worker.forked_ranks import ForkedRanks
    from integration.worker.groups import WORLD

    with ForkedRanks(WORLD) as ranks:
        yield ranks


@pytest.fixture
def grouped(ranks: ForkedRanks) -> ForkedRanks:
    """They have formed one."""
    from integration.worker.groups import init

    ranks.run(init)
    return ranks
