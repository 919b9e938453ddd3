"""Functions and classes of a notebook's `__main__`, in the `__main__` of a rank."""

from __future__ import annotations

import builtins
import inspect
import linecache
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.client.runs.packing import pack_variables
from monarch_nb.errors import PickleError
from monarch_nb.ground.frames import unpack_pickle

CELL = """
import dataclasses, enum, functools, math, threading
lr, threads, lock = 0.1, 3, threading.Lock()
def helper(): return threads * lr
def step(): return lr, rank, helper(), math.pi > 3
def locked():
    with lock: return rank
def twice(function):
    @functools.wraps(function)
    def wrapper(*args): return [function(*args), function(*args)]
    return wrapper
@twice
def decorated(): return lr + rank
class Net:
    width = 2
    @property
    def share(self): return lr * self.width
    def is_net(self): return type(self) is Net or isinstance(self, Net)
class Deep(Net):
    def share_of(self): return super().share + rank
@dataclasses.dataclass
class Config:
    rate: float = 0.5
    def scaled(self): return self.rate * rank
class Colour(enum.Enum):
    RED = 1
    def of(self): return (self.name, rank)
"""


class Mains:
    """The `__main__` of a notebook, and that of a rank 5."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.here, self.there = types.ModuleType("__main__"), types.ModuleType("__main__")
        vars(self.there).update(rank=5)
        self.define(self.here, CELL)

    def define(self, main: types.ModuleType, code: str) -> None:
        name = f"<cell {hash(code)}>"
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
        self._patch.setitem(sys.modules, "__main__", main)
        exec(compile(code, name, "exec"), vars(main))

    def push(self, *names: str, **values: Any) -> Any:
        """Push variables of the notebook, or others; return the rank's namespace."""
        self._patch.setitem(sys.modules, "__main__", self.here)
        data = b"".join(pack_variables({name: vars(self.here)[name] for name in names} | values))
        self._patch.setitem(sys.modules, "__main__", self.there)
        vars(self.there).update(unpack_pickle(bytearray(data)))
        return self.there


@pytest.fixture
def mains(monkeypatch: pytest.MonkeyPatch) -> Mains:
    return Mains(monkeypatch)


def test_globals_are_the_ranks_and_what_they_lack_comes_along(mains: Mains) -> None:
    mains.there.lr = 0.5  # type: ignore[attr-defined]
    there = mains.push("step")
    assert there.step() == (0.5, 5, 1.5, True)
    there.lr = 2
    assert there.step() == (2, 5, 6, True), "they are no copies"
    assert mains.push("step", lr=1).step() == (1, 5, 3, True), "what is pushed at once counts"
    assert not {"Net", "lock", "decorated"} & vars(there).keys(), "nobody needs these"
    assert vars(there)["__builtins__"] is builtins


def test_a_helper_that_came_along_is_renewed_and_the_ranks_own_is_not(mains: Mains) -> None:
    mains.push("step")
    mains.define(mains.here, "lr = 9\ndef helper(): return 'edited'\n")
    assert mains.push("step").step() == (0.1, 5, "edited", True), "values that are there may have changed there"
    mains.define(mains.there, "def helper(): return 'own'\n")
    assert mains.push("step").step() == (0.1, 5, "own", True)


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ("decorated", lambda there: there.decorated()),
        ("made", lambda there: there.made()),
        ("net", lambda there: (there.net.share, there.net.is_net(), there.net.share_of())),
        ("config", lambda there: (there.config.rate, there.config.scaled())),
        ("red", lambda there: there.red.of()),
        ("method", lambda there: there.method()),
    ],
)
def test_they_do_what_a_cell_of_the_ranks_would_do(mains: Mains, names: str, value: Callable[[Any], Any]) -> None:
    makes = "made = lambda: lr * rank\nnet = Deep()\nconfig = Config()\nred = Colour.RED\nmethod = Deep().share_of\n"
    mains.define(mains.here, makes)
    mains.there.lr = 0.25  # type: ignore[attr-defined]
    pushed = value(mains.push(names))
    there, mains.there = mains.there, types.ModuleType("__main__")
    vars(mains.there).update(rank=5)
    mains.define(mains.there, f"{CELL}lr = 0.25\n{makes}")
    assert pushed == value(mains.there)
    assert there is not mains.there


@pytest.mark.parametrize(
    "code",
    [
        "def __getstate__(self): return {}\n  def __setstate__(self, state): seen.append(scaled(1))",
        "def __init__(self): seen.append(scaled(1))\n  def __reduce__(self): return type(self), ()",
        "def __hash__(self): return len(seen) + scaled(1)",
        "def __init_subclass__(cls): seen.append(scaled(1))",
    ],
)
def test_what_unpickling_calls_has_its_globals(mains: Mains, code: str) -> None:
    mains.define(mains.here, "import math\nseen = []\ndef scaled(by): return math.floor(factor * by)\nfactor = 3\n")
    mains.define(mains.here, f"class Odd:\n  {code}\nclass Odder(Odd): pass\nodd, odds = Odder(), {{Odd(), Odder()}}\n")
    for factor in (3, 5):
        there = mains.push("odds", "odd", factor=factor)
        assert there.odd in {there.odd}
        assert {type(each).__name__ for each in there.odds} == {"Odd", "Odder"}
        assert there.scaled(2) == 2 * factor


def test_a_class_that_the_ranks_have_is_theirs(mains: Mains) -> None:
    mains.define(mains.there, CELL)
    theirs, made = mains.there.Net, mains.there.Deep()  # type: ignore[attr-defined]
    mains.define(mains.here, "net = Deep()")
    there = mains.push("net", "Net", "Config", "Colour")
    assert isinstance(there.net, theirs)
    assert there.Net is theirs, "pushed itself, it is the same"
    mains.define(mains.here, CELL.replace("lr * self.width", "lr + self.width"))
    there = mains.push("Net")
    assert there.Net is not theirs, "it was another one by now"
    assert isinstance(made, theirs)
    assert there.Net().share == 2.1


def test_an_array_may_have_the_name_of_a_class(mains: Mains) -> None:
    mains.define(mains.here, "import numpy as np\nnet = Net()\nNet = np.zeros(3)\n")
    assert mains.push("net").net.share == 0.2


def test_what_can_not_be_pickled_is_the_ranks_own_or_missed(mains: Mains) -> None:
    with pytest.raises(NameError, match=r"needs lock, and lock \(lock\) can not be pickled: .*; define it on the"):
        mains.push("locked")
    assert "locked" not in vars(mains.there)
    mains.define(mains.there, "import threading\nlock = threading.Lock()")
    assert mains.push("locked").locked() == 5
    with pytest.raises(PickleError, match=r"^lock \(lock\) can not be pickled: .*; build it on the ranks instead"):
        mains.push("lock")


def test_only_what_can_not_be_pickled_itself_is_missed(mains: Mains) -> None:
    mains.define(mains.here, "def outer(): return locked() + lr\n")
    mains.define(mains.there, "import threading\nlock = threading.Lock()")
    assert mains.push("outer").outer() == 5.1


def test_source_comes_along(mains: Mains, monkeypatch: pytest.MonkeyPatch) -> None:
    mains.define(mains.here, "def fails():\n    return 1 / 0  # here\n")
    name = mains.here.fails.__code__.co_filename  # type: ignore[attr-defined]
    data = b"".join(pack_variables({"fails": mains.here.fails}))  # type: ignore[attr-defined]
    monkeypatch.delitem(linecache.cache, name)
    there = unpack_pickle(bytearray(data))
    assert inspect.getsource(there["fails"]) == "def fails():\n    return 1 / 0  # here\n"
