"""What becomes of a module's objects when its new code is executed in it."""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch_nb.worker import reload


class Sources:
    """A directory to import from, whose files are edited."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, text: str, name: str = "edited") -> ModuleType:
        self.write(text, name)
        return importlib.import_module(name)

    def write(self, text: str, name: str = "edited") -> None:
        path = self._directory / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    def edit(self, module: ModuleType, text: str) -> reload.Reloaded:
        assert module.__file__ is not None
        Path(module.__file__).write_text(text)
        return reload.reload(module)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield Sources(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_function_that_is_held_elsewhere_follows(sources: Sources) -> None:
    module = sources.load("SCALE = 1\n\ndef f(x, step=1):\n    return x + step\n")
    held = module.f
    reloaded = sources.edit(
        module, "SCALE = 2\n\ndef f(x, step=10, *, scale=3):\n    'Doc.'\n    return (x + step) * scale\n"
    )
    assert held is module.f
    assert held(1) == 33
    assert held.__doc__ == "Doc."
    assert reloaded.replaced == {"SCALE": (1, 2)}


def test_a_class_stays_the_class_that_it_is(sources: Sources) -> None:
    module = sources.load("class A:\n    kind = 1\n    def f(self): return 1\n    def gone(self): return 0\n")
    held, living = module.A, module.A()
    bound = living.f
    living.weight = 7
    sources.edit(module, "class A:\n    kind = 2\n    def f(self): return 2\n    def g(self): return self.weight\n")
    assert module.A is held
    assert isinstance(living, held)
    assert (living.f(), bound(), living.g(), living.kind) == (2, 2, 7, 2)
    assert not hasattr(living, "gone")
    assert type(pickle.loads(pickle.dumps(living))) is held


def test_what_the_module_makes_of_its_classes_is_of_the_living_ones(sources: Sources) -> None:
    text = "class A:\n    pass\nclass B(A):\n    pass\nsingle = B()\ntable = {'a': A}\n"
    module = sources.load(text)
    first = module.A
    sources.edit(module, f"{text}# edited\n")
    assert type(module.single) is module.B
    assert isinstance(module.single, first)
    assert module.table["a"] is first


def test_super_that_appears_and_disappears(sources: Sources) -> None:
    module = sources.load("class A:\n    def f(self): return 'a'\nclass B(A):\n    def f(self): return 'b'\n")
    living, bound = module.B(), module.B().f
    sources.edit(
        module,
        "class A:\n    def f(self): return 'A'\nclass B(A):\n    def f(self): return super().f() + 'b'\n"
        "    @property\n    def p(self): return super().f()\n    @classmethod\n    def c(cls): return __class__\n",
    )
    assert living.f() == "Ab"
    assert living.p == "A"
    assert living.c() is module.B
    assert bound.__func__ is not module.B.f
    sources.edit(module, "class A:\n    def f(self): return 'A'\nclass B(A):\n    def f(self): return 'plain'\n")
    assert living.f() == "plain"


def test_nested_classes_static_and_class_methods(sources: Sources) -> None:
    text = (
        "class A:\n    class Inner:\n        def f(self): return {0}\n    @staticmethod\n    def s(): return {0}\n"
        "    @classmethod\n    def c(cls): return cls, {0}\n    @property\n    def p(self): return {0}\n"
    )
    module = sources.load(text.format(1))
    inner, static, bound, living = module.A.Inner(), module.A.s, module.A.c, module.A()
    sources.edit(module, text.format(2))
    assert (inner.f(), static(), bound(), living.p) == (2, 2, (module.A, 2), 2)
    assert type(inner) is module.A.Inner


def test_bases_that_change(sources: Sources) -> None:
    module = sources.load("class A:\n    pass\nclass B:\n    def f(self): return 'B'\nclass C(A):\n    pass\n")
    living = module.C()
    reloaded = sources.edit(
        module, "class A:\n    pass\nclass B:\n    def f(self): return 'B'\nclass C(B):\n    pass\n"
    )
    assert living.f() == "B"
    assert isinstance(living, module.B)
    assert reloaded.abandoned == []


def test_a_class_that_can_not_become_the_new_one_is_replaced_and_named(sources: Sources) -> None:
    module = sources.load("class A:\n    __slots__ = ('x',)\n    def f(self): return 1\n")
    living, first = module.A(), module.A
    reloaded = sources.edit(module, "class A:\n    __slots__ = ('x', 'y')\n    def f(self): return 2\n")
    assert reloaded.abandoned == ["A"]
    assert reloaded.replaced["A"] == (first, module.A)
    assert (living.f(), module.A().f()) == (1, 2)


@pytest.mark.parametrize("options", ["", "(slots=True)", "(frozen=True)", "(order=True, kw_only=True)"])
def test_dataclasses(sources: Sources, options: str) -> None:
    text = "from dataclasses import dataclass\n@dataclass{0}\nclass P:\n    x: int\n{1}    def norm(self): return {2}\n"
    module = sources.load(text.format(options, "", "self.x"))
    living = module.P(x=3)
    grows = "slots" not in options
    reloaded = sources.edit(module, text.format(options, "    y: int = 4\n" if grows else "", "self.x * 2"))
    assert reloaded.abandoned == []
    assert isinstance(living, module.P)
    assert living.norm() == 6
    assert living == module.P(x=3)
    assert ("y=4" in repr(living)) is grows


def test_an_enumeration_is_another_one_and_is_named(sources: Sources) -> None:
    text = "import enum\nclass Color(enum.Enum):\n    RED = 1\n"
    module = sources.load(text)
    first = module.Color
    reloaded = sources.edit(module, f"{text}    BLUE = 2\n")
    assert reloaded.abandoned == ["Color"]
    assert reloaded.replaced["Color"] == (first, module.Color)
    assert ([*first], module.Color(2)) == ([first.RED], module.Color.BLUE)


def test_abstract_classes_and_named_tuples(sources: Sources) -> None:
    text = (
        "import abc\nfrom typing import NamedTuple\n"
        "class A(abc.ABC):\n    @abc.abstractmethod\n    def f(self): ...\n{0}"
        "class B(A):\n    def f(self): return {1}\n"
        "class P(NamedTuple):\n    x: int\n    def twice(self): return self.x * {1}\n"
    )
    module = sources.load(text.format("", 1))
    living, point = module.B(), module.P(4)
    sources.edit(module, text.format("    @abc.abstractmethod\n    def g(self): ...\n", 2))
    assert (living.f(), point.twice()) == (2, 8)
    with pytest.raises(TypeError, match="abstract"):
        module.B()
    sources.edit(module, text.format("", 3))
    assert module.B().f() == 3


def test_a_failure_leaves_everything_as_it_was(sources: Sources) -> None:
    text = "N = 1\nclass A:\n    kind = 1\n    def f(self): return N\ndef f(): return N\n"
    module = sources.load(text)
    living, before = module.A(), dict(vars(module))
    contents = dict(vars(module.A))
    with pytest.raises(ZeroDivisionError):
        sources.edit(
            module,
            "N = 2\nclass A:\n    def f(self): return 5\n    def g(self): ...\ndef f(): return 9\nM = 1\n1 / 0\n",
        )
    assert dict(vars(module)) == before
    assert dict(vars(module.A)) == contents
    assert (living.f(), living.kind, module.f()) == (1, 1, 1)
    sources.edit(module, text.replace("N = 1", "N = 3"))
    assert (living.f(), module.f()) == (3, 3)


def test_functions_and_classes_that_are_gone(sources: Sources) -> None:
    module = sources.load("import os\nN = 1\ndef f(): ...\nclass A: ...\ndef stays(): ...\n")
    module.added = 5
    sources.edit(module, "def stays(): ...\n")
    assert not hasattr(module, "f")
    assert not hasattr(module, "A")
    assert module.added == 5


def test_functions_of_other_modules_are_left_alone(sources: Sources) -> None:
    module = sources.load("from os.path import join as combine\n")
    before = module.combine.__code__
    sources.edit(module, "from os.path import split as combine\n")
    import os.path

    assert os.path.join.__code__ is before
    assert module.combine is os.path.split


def test_a_function_that_gets_a_decorator_is_another_object(sources: Sources) -> None:
    module = sources.load("import functools\ndef f(): return 1\n")
    held = module.f
    reloaded = sources.edit(module, "import functools\n@functools.lru_cache\ndef f(): return 2\n")
    assert reloaded.replaced["f"] == (held, module.f)
    assert module.f() == 2


def test_what_a_decorator_made_of_a_function_is_another_object(sources: Sources) -> None:
    text = "def twice(f):\n    def wrapper(): return 2 * f()\n    return wrapper\n@twice\ndef g(): return {0}\n"
    module = sources.load(text.format(1))
    held = module.g
    reloaded = sources.edit(module, text.format(5))
    assert reloaded.replaced["g"] == (held, module.g)
    assert (held(), module.g()) == (2, 10)


def test_a_decorated_method_that_calls_super_is_of_the_living_class(sources: Sources) -> None:
    text = (
        "def twice(f):\n    def wrapper(self): return 2 * f(self)\n    return wrapper\n"
        "class A:\n    def f(self): return {0}\nclass B(A):\n    @twice\n    def f(self): return super().f()\n"
    )
    module = sources.load(text.format(1))
    living = module.B()
    sources.edit(module, text.format(5))
    assert living.f() == 10


def test_a_proxy_without_a_target_is_no_obstacle(sources: Sources) -> None:
    text = "class P:\n    def __getattribute__(self, name): raise RuntimeError('unbound')\nproxy = P()\nN = {0}\n"
    module = sources.load(text.format(1))
    sources.edit(module, text.format(2))
    assert module.N == 2


def test_registries_and_descriptors_know_the_living_class(sources: Sources) -> None:
    text = (
        "registry = {{}}\nclass Base:\n    def __init_subclass__(cls, key=None): registry[key or cls.__name__] = cls\n"
        "class Owned:\n    def __set_name__(self, owner, name): self.owner = owner\n"
        "class A(Base, key='a'):\n    part = Owned()\n    def f(self): return {0}\nclass B(Base):\n    pass\n"
    )
    module = sources.load(text.format(1))
    first = module.A
    sources.edit(module, text.format(2))
    assert module.registry == {"a": first, "B": module.B}
    assert first.part.owner is first
    assert module.registry["a"]().f() == 2


def test_threads_never_meet_a_module_without_its_names(sources: Sources) -> None:
    module = sources.load(
        "N = 1\ndef helper(): return N\ndef f(): return helper()\nclass A:\n    def f(self): return f()\n"
    )
    living, errors, seen = module.A(), list[Any](), set[int]()
    stop, began = threading.Event(), threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                seen.add(living.f())
            except Exception as error:  # noqa: BLE001 -- any is a failure of the test
                errors.append(error)
            began.set()

    thread = threading.Thread(target=call)
    thread.start()
    assert began.wait(10)
    for number in range(2, 30):
        text = f"import time\nN = {number}\ntime.sleep(0.001)\ndef helper(): return N\n"
        sources.edit(module, f"{text}def f(): return helper()\nclass A:\n    def f(self): return f()\n")
    stop.set()
    thread.join(10)
    assert errors == []
    assert living.f() == 29
