# Annotations of a program are resolved in it, also those that are strings.
# ways: script live cell
from __future__ import annotations

import dataclasses
import enum
import typing


class Kind(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Config:
    kind: Kind
    sizes: list[int] = dataclasses.field(default_factory=list)


print(typing.get_type_hints(Config))
print(Config(Kind("a")), Kind.A.__class__.__module__)
