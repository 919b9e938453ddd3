"""Identifiers of processes and actors, written as Monarch writes them: `trainers<xM3bT8p>`, `root`."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_DIGITS = "123456789abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
"""Of base 58: no letters that look like others."""
_LABEL = re.compile(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?")
_UID = re.compile(rf"(?P<label>[^<>]*)(<(?P<digits>[{_DIGITS}]+)>)?")
_LABEL_RULE = "a label has up to 63 of a-z, 0-9, _ and -, begins with a letter and ends with a letter or digit"


@dataclass(frozen=True, eq=False, repr=False)
class Uid:
    """An identifier, of an instance or of a singleton.

    An instance has a number of 64 bits, and may have a label for people. Instances with equal numbers are equal. A
    singleton has only a label.

    Attributes:
        label: the label; None for an anonymous instance.
        instance_value: the number; None for a singleton.

    Raises:
        ValueError: the label or the number is not allowed, or there is neither.

    Example:
        >>> str(Uid.instance("trainers")), str(Uid.from_string("root"))
        ('trainers<xM3bT8pQ2vK>', 'root')
        >>> Uid.instance_from_value(7, "trainers").is_instance, Uid.from_string("root").is_singleton
        (True, True)
        >>> Uid.anonymous().label
    """

    label: str | None
    instance_value: int | None

    def __post_init__(self) -> None:
        if self.label is None and self.instance_value is None:
            raise ValueError("invalid uid: it has neither a label nor a number")
        if self.label is not None and not _LABEL.fullmatch(self.label):
            raise ValueError(f"invalid uid label {self.label!r}: {_LABEL_RULE}")
        if self.instance_value is not None and not 0 <= self.instance_value < 2**64:
            raise ValueError(f"invalid uid: the number {self.instance_value} does not fit in 64 bits")

    @staticmethod
    def instance(label: str | None = None) -> Uid:
        """Return the identifier of a new instance, with a random number.

        Raises:
            ValueError: the label is not allowed.
        """
        return Uid(label, secrets.randbits(64))

    @staticmethod
    def anonymous() -> Uid:
        """Return the identifier of a new instance without a label."""
        return Uid.instance()

    @staticmethod
    def instance_from_value(value: int, label: str | None = None) -> Uid:
        """Return the identifier of the instance with this number.

        Raises:
            ValueError: the number does not fit in 64 bits, or the label is not allowed.
        """
        return Uid(label, value)

    @staticmethod
    def from_string(uid: str) -> Uid:
        """Read the text that `str` of an identifier returns.

        Raises:
            ValueError: the text is no identifier.
        """
        match = _UID.fullmatch(uid)
        if match is None:
            raise ValueError(f"invalid uid {uid!r}: write NAME, NAME<NUMBER> or <NUMBER>, the number in base 58")
        digits = match["digits"]
        return Uid(match["label"] or None, None if digits is None else _from_base58(digits))

    @property
    def is_instance(self) -> bool:
        """Whether it has a number."""
        return self.instance_value is not None

    @property
    def is_singleton(self) -> bool:
        """Whether it has only a label."""
        return self.instance_value is None

    def __str__(self) -> str:
        number = "" if self.instance_value is None else f"<{_to_base58(self.instance_value)}>"
        return f"{self.label or ''}{number}"

    def __repr__(self) -> str:
        return f"Uid({str(self)!r})"

    def _key(self) -> str | int | None:
        return self.label if self.instance_value is None else self.instance_value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Uid):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, repr=False)
class ProcId:
    """The identifier of a process.

    Attributes:
        uid: the identifier as a Uid.

    Example:
        >>> str(ProcId.from_string("local")), ProcId.from_string("local").label
        ('local', 'local')
    """

    uid: Uid

    @staticmethod
    def from_string(proc_id: str) -> ProcId:
        """Read the text that `str` of an identifier returns.

        Raises:
            ValueError: the text is no identifier.
        """
        return ProcId(Uid.from_string(proc_id))

    @property
    def label(self) -> str | None:
        """The label for people."""
        return self.uid.label

    def __str__(self) -> str:
        return str(self.uid)

    def __repr__(self) -> str:
        return f"ProcId({str(self)!r})"


def _to_base58(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
        if number == 0:
            return digits


def _from_base58(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return number
