"""What a rank keeps alive, and how it ends a run when little is left: memory, descriptors."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.worker.harness import RankProcess
from monarch_nb.proto.run_pb2 import OUTCOME_ERROR, OUTCOME_OK


def test_nothing_keeps_values_alive(rank: RankProcess) -> None:
    rank.ok("import weakref\nclass Big: pass")
    rank.ok("big = Big(); gone = weakref.ref(big)\nbig")
    rank.ok("display(big)")
    rank.ok("big", want_value=False)
    rank.ok("del big")
    assert rank.ok("gone() is None") is True
    assert rank.ok("[name for name in globals() if name in ('_', '__', 'Out', '_1', '_oh') and globals()[name]]") == []


def test_the_frames_of_a_failed_cell_are_released_when_the_next_starts(rank: RankProcess) -> None:
    rank.ok("import gc, weakref\ngc.disable()\nclass Big: pass\nseen = []")
    code = "def step():\n    local = Big()\n    seen.append(weakref.ref(local))\n    raise MemoryError('too big')\n"
    (Path(rank.spec.directory) / "failing.py").write_text(f"{code}step()\n")
    for failing in (
        "step()",
        "try:\n    step()\nexcept MemoryError as error:\n    raise ValueError('x') from error",
        "def outer():\n    try: step()\n    except MemoryError as e: kept = e; raise\nouter()",
        "try:\n    step()\nexcept MemoryError as e:\n    raise ExceptionGroup('both', [e]) from OSError()",
        "%run -i failing.py",
        "import asyncio\nawait asyncio.sleep(0)\nstep()",
    ):
        assert rank.run(f"{code}{failing}").outcome == OUTCOME_ERROR
        assert rank.ok("seen[-1]() is None") is True, failing
    for fail in (lambda: rank.run("get_ipython().run_cell('step()')"), lambda: rank.pull("step()")):
        fail()
        assert rank.ok("seen[-1]() is None") is True
    assert rank.run("step()").outcome == OUTCOME_ERROR
    assert rank.ok("import sys; sys.last_value is not None and seen[-1]() is not None") is True
    assert rank.ok("seen[-1]() is None") is True


def test_an_out_of_memory_cell_then_a_smaller_one_that_fits(rank: RankProcess) -> None:
    rank.ok("import resource, numpy\nused = int(open('/proc/self/statm').read().split()[0]) * 4096")
    rank.ok("resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000, resource.RLIM_INFINITY))")
    failing = (
        "def step(n):\n    blocks = []\n    for _ in range(n):\n        blocks.append(numpy.ones(10_000_000))\nstep(50)"
    )
    assert "Memory" in rank.run(failing).failure.name
    assert rank.ok("step(3)") is None


def test_a_rank_without_descriptors_says_so(rank: RankProcess) -> None:
    """Runs end, however little the rank can do: one that did not would hang for ever."""
    code = """\
import os, resource, threading
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
taken = []
threading.Thread(target=threading.Event().wait, daemon=True).start()  # the run's files stay open: it may print
while True:
    taken.append(os.open("/dev/null", os.O_RDONLY))
"""
    assert "Too many open files" in rank.run(code).failure.message
    result = rank.run("print('lost')\n6 * 7")
    assert (result.outcome, rank.value(result)) == (OUTCOME_OK, 42)
    assert "Too many open files" in result.notice
    rank.ok("for descriptor in taken: os.close(descriptor)")
    assert rank.run("print('there')").notice == ""


@pytest.mark.parametrize("cell", ["1", "import asyncio; await asyncio.sleep(0)"], ids=["plain", "awaiting"])
def test_a_run_whose_end_can_not_be_told_ends(rank: RankProcess, cell: str) -> None:
    """Whatever its user code has done to the process."""
    result = rank.run(f"import os\nfstat, os.fstat = os.fstat, lambda _: 1 / 0\n{cell}")
    assert result.outcome == OUTCOME_ERROR
    assert "division by zero" in result.failure.message
    assert rank.ok("os.fstat = fstat\n6 * 7") == 42
