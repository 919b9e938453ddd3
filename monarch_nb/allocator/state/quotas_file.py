"""The file of the limits of fairness, as people write it: TOML. Pure: of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from monarch_nb.allocator.state.quotas import KINDS, Entry, Quotas
from monarch_nb.toml_lines import Problems, parse_toml

NO_LIMIT = "none"
"""As a limit: what another entry says of it does not hold here."""
_NAME = re.compile(r"[A-Za-z0-9_.@+*-]{1,64}")
_TOP = ("contact", "nodes", "people", "groups")


def read_quotas(text: str) -> tuple[Quotas, list[str]]:
    """Return what a file says, and what is wrong with it: "line 3: ...", in the order of the lines. What is wrong
    limits nothing."""
    try:
        content = parse_toml(text)
    except ValueError as error:
        return Quotas(), [str(error)]
    problems = Problems(text)
    return _Reader(problems).quotas(content), problems.told()


class _Reader:
    """Reads one file, and collects what is wrong."""

    def __init__(self, problems: Problems) -> None:
        self._wrong = problems.add

    def quotas(self, content: Mapping[str, Any]) -> Quotas:
        for key in content:
            if key not in _TOP:
                self._wrong((key,), f"there is no {key!r}: a file has {', '.join(_TOP)}")
        return Quotas(
            people=self._entries(content, "people"),
            groups=self._entries(content, "groups"),
            contact=self._text(content.get("contact", "")),
            nodes=self._words(("nodes",), content.get("nodes", [])),
        )

    def _entries(self, content: Mapping[str, Any], section: str) -> tuple[Entry, ...]:
        entries = content.get(section, {})
        if not isinstance(entries, dict):
            self._wrong((section,), f'{section} is a table of names, as in [{section}."alice"]')
            return ()
        return tuple(entry for name, told in entries.items() if (entry := self._entry(section, name, told)))

    def _entry(self, section: str, name: str, told: Any) -> Entry | None:
        if not _NAME.fullmatch(name):
            self._wrong((section, name), f"{name!r} is no name: letters, digits and _.@+-, and * for any of them")
            return None
        if not isinstance(told, dict):
            self._wrong((section, name), f'{name} is a table of limits, as in [{section}."{name}"]')
            return None
        members = None
        if section == "groups" and "members" in told:
            members = self._words((section, name, "members"), told["members"])
        most = {}
        for key, value in told.items():
            if key == "members" and section == "groups":
                continue
            if key not in KINDS:
                can_be = ", ".join([*KINDS, *(["members"] if section == "groups" else [])])
                self._wrong((section, name, key), f"there is no {key!r}: limits are {can_be}")
            elif value == NO_LIMIT:
                most[key] = float("inf")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                self._wrong((section, name, key), f'{key} is a number of at least 0, or "{NO_LIMIT}", not {value!r}')
            else:
                most[key] = float(value)
        return Entry(name, most, members)

    def _text(self, told: Any) -> str:
        if isinstance(told, str):
            return told
        self._wrong(("contact",), f"contact is a text, not {told!r}")
        return ""

    def _words(self, path: tuple[str, ...], told: Any) -> tuple[str, ...]:
        if isinstance(told, list) and all(isinstance(word, str) for word in told):
            return tuple(told)
        self._wrong(path, f"{path[-1]} is a list of texts, not {told!r}")
        return ()
