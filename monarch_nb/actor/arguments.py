"""Errors of who calls an endpoint with what it can not take. Nothing was sent then."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_nb.ground import pickling


class WrongArguments(TypeError):
    """A TypeError, which a notebook shows without the way through this package. Elsewhere it looks like any other."""

    __module__, __qualname__ = "builtins", "TypeError"

    def __reduce__(self) -> tuple[Any, ...]:
        return TypeError, self.args

    def _render_traceback_(self, *_: Any) -> list[str]:
        return [f"\x1b[31mTypeError\x1b[39m: {self}"]


def check_travelling(title: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Tell which argument it is that can not be pickled, if it is one.

    Args:
        title: what is called: "trainers.step".
        values, named: the arguments.

    Raises:
        TypeError: it is one.
    """
    by_place = ((f"argument {number}", value) for number, value in enumerate(values, 1))
    for name, value in itertools.chain(by_place, ((f"argument {name!r}", value) for name, value in named.items())):
        try:
            pickling.dumps(value, protocol=5, buffer_callback=lambda _: None)
        except Exception as problem:
            raise WrongArguments(
                f"{title}: {name}, {reprlib.repr(value)}, can not be pickled, so it can not be sent to ranks: {problem}"
            ) from problem
