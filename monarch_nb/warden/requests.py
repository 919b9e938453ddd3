"""What the gateway may ask, read strictly: JSON of at most 4 KiB, with the keys that are listed here and no others. No
request has a path, a uid, a signal, an environment or a command. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch_nb.warden.devices import MOST_GPUS

LARGEST_BYTES = 4096
MOST_NAMES = 100
ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_RESERVATION = re.compile(r"[0-9a-f]{32}")
_LARGEST_NUMBER = 1 << 53


class Refused(Exception):
    """Nothing was done. The message is a sentence for the caller and the log."""


class Absent(Refused):
    """There is no room of the account now."""


class Unfinished(Refused):
    """Processes that are to end have not ended yet: ask again."""


@dataclass(frozen=True)
class Request:
    """Attributes: number: of the client's, returned with the answer. do: a key of KEYS. arguments: as KEYS has them."""

    number: int
    do: str
    arguments: Mapping[str, Any]


def _is_name(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _are_names(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MOST_NAMES and all(map(_is_name(PERSON), value))


def _is_memory(value: object) -> bool:
    return type(value) is int and 1 << 20 <= value <= _LARGEST_NUMBER


def _are_cpus(value: object) -> bool:
    return type(value) in (int, float) and 0.01 <= value <= 100_000  # type: ignore[operator]  # just said


def _are_minors(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < MOST_GPUS for each in value)


_ACCOUNT, _ID = {"account": _is_name(ACCOUNT)}, {"reservation": _is_name(_RESERVATION)}
KEYS: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "accounts": {"names": _are_names},
    "open_room": _ACCOUNT,
    "room": _ACCOUNT,
    "way_out": _ACCOUNT,
    "reserve_group": {
        **_ACCOUNT,
        **_ID,
        "memory_bytes": _is_memory,
        "cpus": _are_cpus,
        "gpu_minors": _are_minors,
    },
    "end_group": {**_ACCOUNT, **_ID},
    "close_room": _ACCOUNT,
}
_OPTIONAL = {"memory_bytes", "cpus", "gpu_minors"}


def read(datagram: bytes) -> Request:
    """Return what a datagram asks for.

    Raises:
        Refused: it is not exactly one of the requests that there are.
    """
    try:
        told = json.loads(datagram.decode("ascii"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused("this is no request: not ASCII, no JSON, or a key twice") from None
    if not isinstance(told, dict) or len(datagram) > LARGEST_BYTES:
        raise Refused("this is no request: too long, or no object")
    number, do = told.pop("number", None), told.pop("do", None)
    if type(number) is not int or not 0 <= number < _LARGEST_NUMBER:
        raise Refused("this is no request: it has no number")
    if not isinstance(do, str) or do not in KEYS:
        raise Refused("there is no such request")
    if told.keys() - KEYS[do] or KEYS[do].keys() - told.keys() - _OPTIONAL:
        raise Refused(f"{do} has other keys")
    for key, value in told.items():
        if not KEYS[do][key](value):
            raise Refused(f"{do} has a {key} that can not be one")
    return Request(number, do, told)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)
