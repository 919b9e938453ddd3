"""Files are waited for, however many a process has open."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from monarch_nb.ground.readable import readable

BEYOND_SELECT = 1100


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many may be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * BEYOND_SELECT), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_one_with_a_high_number_is_waited_for() -> None:
    end, other = os.pipe()
    far = fcntl.fcntl(end, fcntl.F_DUPFD, BEYOND_SELECT)
    try:
        assert readable([far], 0) == []
        os.write(other, b"x")
        assert readable([far]) == [far]
    finally:
        for each in (end, other, far):
            os.close(each)
