"""Messages that no client of ours sends, from the service's description: right types with wrong values, and bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from monarch_nb.allocator.api.guard import IDS, SERVICE

METHODS: tuple[MethodDescriptor, ...] = tuple(SERVICE.methods)
DEPTH = 3
"""How deep messages lie in messages."""
LONG = 100_000
_TEXTS = (
    "",
    "x",
    "é" * 7,
    "%s%n{0}",
    "-rf",
    "\0",
    "a\0b",
    ".",
    "..",
    "../../../../../../nonexistent",
    "/nonexistent/a",
)
_DOUBLES = (0.0, 1.0, -1.0, 0.25, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_LETTERS = "abcXYZ019 _-.:;,\"'\\\n\t\r\x1b\u2028\U0001f600"
"""Without a slash: paths are chosen, since the allocator of a test runs as root perhaps."""
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (True, 32),
    FieldDescriptor.CPPTYPE_INT64: (True, 64),
    FieldDescriptor.CPPTYPE_UINT32: (False, 32),
    FieldDescriptor.CPPTYPE_UINT64: (False, 64),
}


@dataclass(frozen=True)
class Fuzz:
    """Makes messages.

    Args:
        random: decides.
        ids: that exist.
        known: names and paths that exist.
    """

    random: Random
    ids: Sequence[str]
    known: Sequence[str]

    def method(self, without: Sequence[str] = ()) -> MethodDescriptor:
        """Return some method of the service."""
        return self.random.choice([method for method in METHODS if method.name not in without])

    def sent(self, method: MethodDescriptor) -> bytes:
        """Return what is sent as a message of a method: in a quarter of the cases not even a message."""
        made = self.message(method.input_type).SerializeToString()
        match self.random.randrange(12):
            case 0:
                return made[: self.random.randrange(len(made) + 1)]
            case 1:
                return self.random.randbytes(self.random.randrange(64))
            case 2 if made:
                spoilt = bytearray(made)
                spoilt[self.random.randrange(len(spoilt))] ^= 1 << self.random.randrange(8)
                return bytes(spoilt)
        return made

    def message(self, kind: Descriptor, depth: int = DEPTH) -> Any:
        """Return a message of a kind, with values of the right types in some of its fields."""
        made = kind._concrete_class()
        choices = {one: self.random.choice(one.fields) for one in kind.oneofs}
        for field in kind.fields:
            is_chosen = choices.get(field.containing_oneof, field) is field
            if is_chosen and self.random.random() < 0.7 and (depth or field.message_type is None):
                self._fill(made, field, depth)
        return made

    def _fill(self, made: Any, field: FieldDescriptor, depth: int) -> None:
        if not field.is_repeated:
            if field.message_type is None:
                setattr(made, field.name, self._value(field))
            else:
                getattr(made, field.name).CopyFrom(self.message(field.message_type, depth - 1))
            return
        values = getattr(made, field.name)
        for _ in range(self.random.randrange(4)):
            if field.message_type is None:
                values.append(self._value(field))
            elif field.message_type.GetOptions().map_entry:
                self._put(values, field.message_type.fields_by_name, depth)
            else:
                values.add().CopyFrom(self.message(field.message_type, depth - 1))

    def _put(self, entries: Any, fields: Any, depth: int) -> None:
        key, value = self._value(fields["key"]), fields["value"]
        if value.message_type is None:
            entries[key] = self._value(value)
        else:
            entries[key].CopyFrom(self.message(value.message_type, depth - 1))

    def _value(self, field: FieldDescriptor) -> Any:
        random = self.random
        if field.cpp_type in _BITS:
            return self._number(*_BITS[field.cpp_type])
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return random.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                return random.choice([0, 1, 2, 3, 17, -1, 2**31 - 1])
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return random.choice([self._text().encode(), random.randbytes(random.randrange(200))])
            case FieldDescriptor.CPPTYPE_STRING:
                is_id = field.name in IDS and random.random() < 0.9
                return random.choice(self.ids) if is_id else self._text()
            case FieldDescriptor.CPPTYPE_DOUBLE:
                return random.choice([*_DOUBLES, struct.unpack("d", random.randbytes(8))[0]])
        raise AssertionError(f"no values for {field.full_name}")

    def _number(self, signed: bool, bits: int) -> int:
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return self.random.choice([0, 1, 2, 3, least, most, most - 1, self.random.randint(least, most)])

    def _text(self) -> str:
        match self.random.randrange(40):
            case 0:
                return "y" * LONG
            case drawn if drawn < 18:
                return self.random.choice(self.known)
            case drawn if drawn < 30:
                return self.random.choice(_TEXTS)
        return "".join(self.random.choices(_LETTERS, k=self.random.randrange(20)))
