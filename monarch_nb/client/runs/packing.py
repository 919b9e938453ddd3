"""What travels to ranks: variables as one pickle."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from monarch_nb.errors import PickleError
from monarch_nb.ground.frames import pack_pickle


def pack_variables(variables: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Return variables as one pickle, in pieces. What functions and classes of `__main__` need comes along.

    Raises:
        PickleError: a value can not be pickled; the message names it.
    """
    left_out: dict[str, str] = {}
    while True:
        needed: dict[str, Any] = {}
        try:
            return _packed(variables, left_out, needed)
        except Exception as error:
            found = {name: _why_not(value) for name, value in needed.items() if name not in left_out}
            new = {name: why for name, why in found.items() if why}
            left_out |= new  # the ranks may have their own
            if not new:
                for name, value in variables.items():
                    if why := _why_not(value):
                        others = ", and push the others without it" if len(variables) > 1 else ""
                        raise PickleError(f"{name} {why}; build it on the ranks instead{others}", name) from error
                raise PickleError(f"can not be pickled: {error}") from error


def _packed(
    variables: Mapping[str, Any], left_out: Mapping[str, str], needed: dict[str, Any]
) -> list[bytes | memoryview]:
    from monarch_nb.ground.pushing import PushPickler

    def dumps(
        variables: Mapping[str, Any], *, protocol: int, buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> bytes:
        with io.BytesIO() as file:
            pickler = PushPickler(file, variables, left_out, needed, protocol=protocol, buffer_callback=buffer_callback)
            pickler.dump_variables()
            return file.getvalue()

    return pack_pickle(variables, dumps)


def _why_not(value: Any) -> str:
    """Return why a value can not be pickled, whatever it needs; empty when it can."""
    try:
        _packed({"": value}, left_out=dict.fromkeys(vars(sys.modules["__main__"]), ""), needed={})
    except Exception as error:  # noqa: BLE001 -- whatever its __reduce__ raises
        return f"({type(value).__name__}) can not be pickled: {error}"
    return ""
