"""Sources of what ranks ran: named for people, kept for tracebacks, bounded."""

import linecache

import pytest

from monarch_nb.ground.code_names import code_label
from monarch_nb.worker.shell import shell as compiler_module
from monarch_nb.worker.shell.shell import BoundedCompiler


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> BoundedCompiler:
    monkeypatch.setattr(linecache, "cache", {})
    return BoundedCompiler()


def sources() -> list[str]:
    return [linecache.getline(name, 1).strip() for name in linecache.cache if code_label(name)]


def test_the_same_number_of_a_cell_and_a_run_are_two(compiler: BoundedCompiler) -> None:
    cell = compiler.cache("x", 5)
    compiler.kind = "run"
    assert [compiler.format_code_name(name) for name in (cell, compiler.cache("x", 5))] == [
        ("Cell", "In[5]"),
        ("Run", "5"),
    ]


def test_old_sources_are_forgotten_those_that_define_something_last(
    compiler: BoundedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_SOURCES", 3)
    monkeypatch.setattr(compiler_module, "MAX_DEFINING_SOURCES", 2)
    for code in ("def f(): pass", "a", "b", "c", "d", "class C: pass"):
        compiler.cache(code, 1)
    assert sources() == ["def f(): pass", "b", "c", "d", "class C: pass"]
    compiler.cache("lambda: 1", 1)
    assert "def f(): pass" not in sources()


def test_large_sources_are_forgotten_sooner_but_never_the_newest(
    compiler: BoundedCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_SOURCE_CHARACTERS", 100)
    for number in range(5):
        compiler.cache(f"x{number} = {'1' * 40}", number)
    assert [source[:2] for source in sources()] == ["x3", "x4"]
    compiler.cache(f"large = {'1' * 200}", 9)
    assert [source[:5] for source in sources()] == ["large"]
    compiler.cache("small", 10)
    assert sources() == ["small"]
    compiler.cache("small", 10)
    assert sources() == ["small"]
