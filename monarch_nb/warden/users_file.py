"""users.toml: whose certificate means which account, who may run as themselves, and who may have how much. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from monarch_nb.toml_lines import Problems, parse_toml
from monarch_nb.warden.requests import ACCOUNT

SAME = "same"
"""As an account: the one that is called as the person."""
MOST_ROOMS = 64
_NAME = re.compile(r"[A-Za-z0-9_.@+*-]{1,64}")
_GROUP = re.compile(r"@[A-Za-z0-9_.-]{1,64}")
_MEMORY = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([MGT])")
_POWERS = {"M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class Limit:
    """The most that one account may have on this machine at a time; None: no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True)
class Users:
    """What the file says.

    Attributes:
        allow: accounts, and `@group` for a Unix group; None: every person's account.
        rooms: how many accounts may have a room at a time.
        accounts: by the person's name or a pattern. limits: by account, `@group` or `*`.
    """

    allow: tuple[str, ...] | None = None
    rooms: int = MOST_ROOMS
    accounts: Mapping[str, str] = field(default_factory=lambda: {"*": SAME})
    limits: Mapping[str, Limit] = field(default_factory=dict)

    def account_of(self, person: str) -> str | None:
        """Return the account that a person's name means; None when the table has none, or it can not be one."""
        found = [pattern for pattern in self.accounts if fnmatchcase(person, pattern)]
        if not found:
            return None
        account = self.accounts[max(found, key=lambda pattern: ("*" not in pattern, len(pattern)))]
        account = person if account == SAME else account
        return account if ACCOUNT.fullmatch(account) else None

    def may(self, account: str, groups: Collection[str]) -> bool:
        """Return whether an account, which is in these Unix groups, may have a room."""
        return self.allow is None or account in self.allow or any(f"@{group}" in self.allow for group in groups)

    def limit_of(self, account: str, groups: Collection[str]) -> Limit:
        """Return what an account may have: as its own entry says, else that of its group that allows most, else `*`."""
        of_groups = [self.limits[f"@{group}"] for group in groups if f"@{group}" in self.limits]
        own, everybody = self.limits.get(account, Limit()), self.limits.get("*", Limit())
        memory = [limit.memory_bytes for limit in of_groups if limit.memory_bytes]
        cpus = [limit.cpus for limit in of_groups if limit.cpus]
        return Limit(
            own.memory_bytes or max(memory, default=everybody.memory_bytes),
            own.cpus or max(cpus, default=everybody.cpus),
        )


def memory_of(text: object) -> int | None:
    """Return "64G" in bytes, as Slurm and containers count it (powers of 1024); None when it is none."""
    if isinstance(text, str) and (match := _MEMORY.fullmatch(text)):
        return int(float(match[1]) * (1 << _POWERS[match[2]])) or None
    return None


def memory_text(memory_bytes: int) -> str:
    """Return "64G" or "1.5T": what `memory_of` reads."""
    unit = next((unit for unit in "TG" if memory_bytes >= 1 << _POWERS[unit]), "M")
    return f"{memory_bytes / (1 << _POWERS[unit]):.3f}".rstrip("0").rstrip(".") + unit


def read_users(text: str) -> tuple[Users, list[str]]:
    """Return what a file says, and what is wrong with it: "line 3: ...", in the order of the lines."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        return Users(), [str(error)]
    problems = Problems(text)
    return _Reader(problems).users(content), problems.told()


class _Reader:
    """Reads one file, and collects what is wrong."""

    def __init__(self, problems: Problems) -> None:
        self._wrong = problems.add

    def users(self, content: Mapping[str, Any]) -> Users:
        known = ("allow", "rooms", "accounts", "limits")
        for key in content.keys() - set(known):
            self._wrong((key,), f"there is no {key!r}: a file has {', '.join(known)}")
        rooms = content.get("rooms", MOST_ROOMS)
        if type(rooms) is not int or not 0 <= rooms <= 10_000:
            self._wrong(("rooms",), f"rooms is a number from 0 to 10000, not {rooms!r}")
            rooms = 0
        return Users(
            self._allow(content["allow"]) if "allow" in content else None,
            rooms,
            self._accounts(content.get("accounts", {"*": SAME})),
            self._limits(content.get("limits", {})),
        )

    def _allow(self, told: Any) -> tuple[str, ...]:
        words = told if isinstance(told, list) else [told]
        for word in words:
            if not isinstance(word, str) or not (ACCOUNT.fullmatch(word) or _GROUP.fullmatch(word)):
                self._wrong(
                    ("allow",), f'allow is a list of accounts and groups, as in ["alice", "@lab"], not {word!r}'
                )
        return tuple(word for word in words if isinstance(word, str))

    def _accounts(self, told: Any) -> dict[str, str]:
        if not isinstance(told, dict):
            self._wrong(("accounts",), "accounts is a table of names, as in [accounts]")
            return {}
        found = {}
        for name, account in told.items():
            if not _NAME.fullmatch(name):
                self._wrong(("accounts", name), f"{name!r} is no name: letters, digits and _.@+-, and * for any")
            elif not isinstance(account, str) or not ACCOUNT.fullmatch(account):
                self._wrong(("accounts", name), f'{name} is the name of an account, or "{SAME}", not {account!r}')
            else:
                found[name] = account
        return found

    def _limits(self, told: Any) -> dict[str, Limit]:
        if not isinstance(told, dict):
            self._wrong(("limits",), 'limits is a table of names, as in [limits."@students"]')
            return {}
        found = {}
        for name, entry in told.items():
            if name != "*" and not ACCOUNT.fullmatch(name) and not _GROUP.fullmatch(name):
                self._wrong(("limits", name), f'{name!r} is no account, no group such as "@lab", and not "*"')
            elif not isinstance(entry, dict) or entry.keys() - {"memory", "cpus"}:
                self._wrong(("limits", name), f"{name} is a table with memory, cpus or both")
            else:
                found[name] = Limit(*(self._amount(name, key, entry) for key in ("memory", "cpus")))
        return found

    def _amount(self, name: str, key: str, entry: Mapping[str, Any]) -> Any:
        value = entry.get(key)
        if value is None:
            return None
        if key == "memory" and (found := memory_of(value)):
            return found
        if key == "cpus" and type(value) in (int, float) and 0.01 <= value <= 100_000:
            return value
        example = '"64G"' if key == "memory" else "8"
        self._wrong(("limits", name, key), f"{key} is such as {example}, not {value!r}")
        return None
