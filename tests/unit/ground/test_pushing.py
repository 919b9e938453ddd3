"""Functions and classes of a notebook's `__main__`, in the `__main__` of a rank."""

from __future__ import annotations

import builtins
import inspect
import linecache
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
from cloudpickle import cloudpickle

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
        exec(compile(code, name, "exec", dont_inherit=True), vars(main))

    def push(self, *names: str, **values: Any) -> Any:
        """Push variables of the notebook, or others; return the rank's namespace."""
        self._patch.setitem(sys.modules, "__main__", self.here)
        data = b"".join(pack_variables({name: vars(self.here)[name] for name in names} | values))
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()  # a rank does not know the notebook's classes
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
    mains.define(mains.here, "net, config = Net(), Config()")
    there = mains.push("net", "config", "Net", "Config", "Colour")
    assert isinstance(there.net, theirs)
    assert there.Net is theirs, "pushed itself, it is the same"
    mains.define(mains.here, CELL.replace("lr * self.width", "lr + self.width"))
    there = mains.push("Net")
    assert there.Net is not theirs, "it was another one by now"
    assert isinstance(made, theirs)
    assert there.Net().share == 2.1


@pytest.mark.parametrize("wrapper", ["functools.cache", "functools.cached_property", "functools.singledispatchmethod"])
def test_a_class_whose_wrapped_method_was_edited_is_another_one(mains: Mains, wrapper: str) -> None:
    code = f"import functools\nclass Net:\n  @{wrapper}\n  def size(self, *_): return 1\n"
    mains.define(mains.here, code)
    theirs = mains.push("Net").Net
    mains.define(mains.here, code)
    assert mains.push("Net").Net is theirs
    mains.define(mains.here, code.replace("return 1", "return 2"))
    assert mains.push("Net").Net is not theirs


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class Kind(enum.Enum): A = 1", "class Kind(enum.Enum): A = 2"),
        ("class Kind(enum.IntFlag): A = 1", "class Kind(enum.IntFlag): A = 2"),
        ("class Kind(enum.StrEnum): A = 'a'", "class Kind(enum.StrEnum): A = 'b'"),
        ("class Kind: A = [1, {2: (3,)}]", "class Kind: A = [1, {2: (4,)}]"),
        ("class Kind(Generic[T]): A = 1", "class Kind(Generic[T]): A = 2"),
        ("class Kind(Protocol[T]): A = 1", "class Kind(Protocol[T]): A = 2"),
        ("class Kind(NamedTuple): A: int = 1", "class Kind(NamedTuple): A: int = 2"),
        ("Kind = TypedDict('Kind', {'A': int})", "class Kind(TypedDict): B: int"),
        ("@dataclass(slots=True)\nclass Kind: A: int", "@dataclass(slots=True)\nclass Kind: B: int"),
    ],
)
def test_a_class_whose_values_were_edited_is_another_one(mains: Mains, before: str, after: str) -> None:
    pushed = []
    for code in (before, before, after):
        lines = "import enum\nfrom dataclasses import dataclass\nfrom typing import *\nT = TypeVar('T')"
        mains.define(mains.here, f"{lines}\n{code}")
        pushed.append(mains.push("Kind").Kind)
    assert pushed[0] is pushed[1]
    assert pushed[2] is not pushed[1]
    assert repr(getattr(pushed[2], "A", "")) == repr(getattr(mains.here.Kind, "A", ""))  # type: ignore[attr-defined]


def test_an_array_may_have_the_name_of_a_class(mains: Mains) -> None:
    mains.define(mains.here, "import numpy as np\nnet = Net()\nNet = np.zeros(3)\n")
    assert mains.push("net").net.share == 0.2


def test_what_can_not_be_pickled_is_the_ranks_own_or_missed(mains: Mains) -> None:
    with pytest.raises(NameError, match=r"needs lock, and lock \(lock\) can not be pickled: .*; define it on the"):
        mains.push("locked")
    assert "locked" not in vars(mains.there)
    mains.define(mains.there, "import threading\nlock = threading.Lock()")
    assert mains.push("locked").locked() == 5
    with pytest.raises(
        PickleError, match=r"^lock \(lock\) can not be pickled: .*; build it on the ranks instead, and push the"
    ):
        mains.push("lr", "lock")


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


WRAPPED = """
import dataclasses, functools, typing
from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVarTuple, Unpack, runtime_checkable
lr = 0.1
@functools.lru_cache(maxsize=7)
def cached(x): return x * lr + rank
@functools.cache
def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
def caller(): return cached(2)
class Reader:
    @functools.lru_cache
    def read(self): return lr + rank
    @functools.cached_property
    def size(self): return lr * rank
    @functools.singledispatchmethod
    def kind(self, x): return "any", lr
    @kind.register
    def _(self, x: int): return "int", lr
def maker():
    @functools.cache
    def inner(x): return x + lr + rank
    return inner
inner = maker()
@functools.singledispatch
def kind(x): return "any", lr
@kind.register
def _(x: int): return "int", rank
@kind.register(Reader)
def of_reader(x): return "reader", lr
class Retry:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function
    def __call__(self, *args): return self.function(*args)
@Retry
def retried(x): return x * lr
half = functools.partial(cached, 4)
bound = Reader().read
class Method:
    go = functools.partialmethod(lambda self, x: x * lr, 3)
Key = typing.NewType("Key", int)
def of_key(): return Key(3) * lr
P, T = typing.ParamSpec("P"), typing.TypeVar("T")
def typed(function: typing.Callable[P, T]) -> typing.Callable[P, T]:
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T: return function(*args, **kwargs)
    return wrapper
@typed
def of_typed(x): return x * lr
def counter():
    count = 0
    def count_up(): nonlocal count; count += 1
    def counted(): return count, count_up
    return count_up, counted
count_up, counted = counter()
@dataclasses.dataclass
class Box(Generic[T]):
    x: T
    def twice(self) -> T: return self.x * 2 * lr
box = Box[int](3)
Many = TypeVarTuple("Many")
class Boxes(Generic[Unpack[Many]]): pass
@runtime_checkable
class Twice(Protocol[T]):
    def twice(self) -> T: ...
class Point(NamedTuple):
    x: int
    y: int = 3
    def sum(self) -> float: return self.x + self.y + lr
point = Point(1)
Called = TypedDict("Called", {"a": int})
class Config(Called, total=False): b: Point
def of_types(p: Point = point, c: Config | None = None) -> Box[Point]: return Box(p), Config(a=1, b=p)
"""


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ("cached", lambda there: (there.cached(3), there.cached.cache_parameters(), there.cached.__name__)),
        ("fibonacci", lambda there: (there.fibonacci(30), there.fibonacci.__wrapped__.__globals__ is vars(there))),
        ("caller", lambda there: there.caller()),
        ("inner", lambda there: there.inner(1)),
        ("Reader", lambda there: (there.Reader().read(), there.Reader().size)),
        ("Reader", lambda there: (there.Reader().kind(1), there.Reader().kind("a"))),
        ("kind Reader", lambda there: (there.kind(1), there.kind("a"), there.kind(there.Reader()))),
        ("kind Reader", lambda there: there.kind.register(str)(len) is len and there.kind("four")),
        ("retried", lambda there: (there.retried(3), there.retried.__name__)),
        ("half", lambda there: there.half()),
        ("bound", lambda there: there.bound()),
        ("Method", lambda there: there.Method().go()),
        ("of_typed typed", lambda there: (there.of_typed(2), there.typed(len)("four"))),
        ("of_key", lambda there: (there.of_key(), there.Key.__supertype__)),
        ("count_up counted", lambda there: (there.count_up(), there.counted()[1](), there.counted()[0])),
        ("box Box Boxes", lambda there: (there.box.twice(), type(there.box) is there.Box, str(there.Boxes[int]))),
        ("Twice box", lambda there: (isinstance(there.box, there.Twice), isinstance(3, there.Twice))),
        ("Point point", lambda there: (there.point.sum(), there.point == there.Point(1), there.Point(y=1, x=2))),
        ("Config", lambda there: (there.Config(a=1), typing.get_type_hints(there.Config).keys())),
        ("of_types", lambda there: (str(there.of_types()), str(typing.get_type_hints(there.of_types)))),
    ],
)
def test_what_wraps_a_function_arrives_as_a_cell_would_define_it(
    mains: Mains, names: str, value: Callable[[Any], Any]
) -> None:
    mains.define(mains.here, WRAPPED)
    mains.there.lr = 0.25  # type: ignore[attr-defined]
    pushed = value(mains.push(*names.split()))
    mains.there = types.ModuleType("__main__")
    vars(mains.there).update(rank=5)
    mains.define(mains.there, f"{WRAPPED}lr = 0.25\n")
    assert pushed == value(mains.there)


def test_a_cached_helper_that_came_along_is_renewed(mains: Mains) -> None:
    mains.define(mains.here, WRAPPED)
    assert mains.push("caller").caller() == 5.2
    mains.define(mains.here, "@functools.cache\ndef cached(x): return 'edited'\n")
    assert mains.push("caller").caller() == "edited"


def test_what_pickles_by_its_name_alone_is_the_ranks_own_or_missed(mains: Mains) -> None:
    mains.define(mains.here, "class Named:\n  def __reduce__(self): return 'named'\nnamed = Named()\n")
    mains.define(mains.here, "def of_named(): return named\n")
    for pushed in ("named", "of_named"):
        with pytest.raises(
            PickleError if pushed == "named" else NameError,
            match=r"named \(Named\) can not be pickled: it pickles only by its name; ",
        ):
            mains.push(pushed)
    theirs = vars(mains.there)["named"] = object()
    assert mains.push("of_named").of_named() is theirs
