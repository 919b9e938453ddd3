"""What an actor executes for a message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

PORT = ":port"
"""Behind the name of a plain method that is called with a port (`as_endpoint(explicit_response_port=True)`)."""


class Declared:
    """What a class has under the name of an endpoint.

    Attributes:
        method: the function.
        is_explicit: whether it gets a port for its response.
        is_concurrent: whether the actor takes other messages meanwhile.
    """

    def __init__(self, method: Callable[..., Any], is_explicit: bool, is_concurrent: bool) -> None:
        self.method, self.is_explicit, self.is_concurrent = method, is_explicit, is_concurrent


def find_method(kind: type, key: str) -> Declared:
    """Return what a message means by the name of an endpoint, or of a plain method.

    Raises:
        AttributeError: the class has none, though that of the caller had.
    """
    name = key.removesuffix(PORT)
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, Declared):
        return found
    plain = getattr(kind, name, None)
    if not callable(plain):
        raise AttributeError(f"{kind} has no method {name!r}: is the class in the rank's environment another version?")
    if isinstance(found, staticmethod):
        return Declared(lambda _, *values, **named: plain(*values, **named), key.endswith(PORT), False)
    return Declared(plain if not isinstance(found, classmethod) else found.__func__, key.endswith(PORT), False)
