"""What travels to ranks: variables as one pickle."""

from __future__ import annotations

from typing import Any

from monarch_nb.errors import PickleError
from monarch_nb.ground.frames import pack_pickle


def pack_variables(variables: dict[str, Any]) -> list[bytes | memoryview]:
    """Return variables as one pickle, in pieces.

    Raises:
        PickleError: a value can not be pickled; the message names it.
    """
    from monarch_nb.ground.pickling import dumps

    try:
        return pack_pickle(variables, dumps)
    except Exception as error:
        for name, value in variables.items():
            try:
                pack_pickle(value, dumps)
            except Exception as cause:
                raise PickleError(
                    f"{name} ({type(value).__name__}) can not be pickled: {cause}; build it on the ranks instead", name
                ) from cause
        raise PickleError(f"can not be pickled: {error}") from error
