"""Code of a cell that Monarch pickles keeps the name that people know."""

from __future__ import annotations

import pickle
from types import CodeType, FunctionType

import cloudpickle
import pytest

from monarch_nb.client.monarch import sources
from monarch_nb.ground import pickling


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = cloudpickle.Pickler.dispatch_table
    monkeypatch.setitem(table, CodeType, table[CodeType])  # what it has now comes back
    monkeypatch.setattr(sources, "cell_label", {"/tmp/ipykernel_7/12.py": ("Cell", "In[7]")}.get)
    sources.name_cells()


def function(name: str) -> FunctionType:
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile("def step():\n    inner = lambda: 1\n    return inner", name, "exec"), space)
    step = space["step"]
    assert isinstance(step, FunctionType)
    return step


def test_code_is_named_as_people_know_it(named: None) -> None:
    for name, known in {"/tmp/ipykernel_7/12.py": "Cell In[7]", "/home/me/train.py": "/home/me/train.py"}.items():
        arrived = pickle.loads(cloudpickle.dumps(function(name)))
        assert arrived.__code__.co_filename == arrived().__code__.co_filename == known


def test_our_own_actors_code_keeps_its_file_name(named: None) -> None:
    data = pickling.dumps(function("/tmp/ipykernel_7/12.py"), protocol=5, buffer_callback=lambda _: None)
    assert pickle.loads(data).__code__.co_filename == "/tmp/ipykernel_7/12.py"
