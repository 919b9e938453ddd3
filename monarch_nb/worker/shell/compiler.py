"""Compiles what ranks run, and keeps its source for tracebacks: not of every run for ever."""

import linecache

from IPython.core.compilerop import CachingCompiler

from monarch_nb.ground.code_names import Kind, code_label, code_name

MAX_SOURCES = 200
"""So many of the newest, whatever they do."""
MAX_DEFINING_SOURCES = 2_000
"""So many that may define functions or classes: those are called later, and then their lines are wanted."""
MAX_SOURCE_CHARACTERS = 32_000_000


class BoundedCompiler(CachingCompiler):
    """Names code after its cell, run or pull.

    Attributes:
        kind: what is compiled now.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind: Kind = "cell"
        self._sources: dict[str, int] = {}  # the newest last, with how long they are
        self._defining: dict[str, int] = {}
        self._characters = 0

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of code."""
        return code_name(self.kind, number, transformed_code)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return what people call it, in two words."""
        return code_label(name)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Keep the source of code that is about to be compiled; return its file name."""
        name = self.get_code_name("", transformed_code, number)
        lines = [f"{line}\n" for line in transformed_code.splitlines()]
        linecache.cache[name] = len(transformed_code), None, lines, name  # without a time it is never out of date
        for kept in (self._sources, self._defining):
            self._characters -= kept.pop(name, 0)
        defines = any(word in transformed_code for word in ("def", "class", "lambda"))
        kept = self._defining if defines else self._sources
        kept[name] = len(transformed_code)
        self._characters += len(transformed_code)
        self._forget_old(name)
        return name

    def _forget_old(self, newest: str) -> None:
        while len(self._sources) > MAX_SOURCES:
            self._forget(self._sources)
        while len(self._defining) > MAX_DEFINING_SOURCES:
            self._forget(self._defining)
        for kept in (self._sources, self._defining):
            while self._characters > MAX_SOURCE_CHARACTERS and kept and next(iter(kept)) != newest:
                self._forget(kept)

    def _forget(self, kept: dict[str, int]) -> None:
        name = next(iter(kept))
        self._characters -= kept.pop(name)
        linecache.cache.pop(name, None)
