"""`monarch-nb pool users`: whose account a person's name means on this computer, and what is wrong with its file."""

from __future__ import annotations

import argparse
import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

from monarch_nb.cli.tables import print_json, print_table
from monarch_nb.errors import UsageError
from monarch_nb.toml_lines import line_of, lines_of
from monarch_nb.warden.accounts import check_only_root_writes, look_up, look_up_allowed
from monarch_nb.warden.command import USERS
from monarch_nb.warden.requests import PERSON, Refused
from monarch_nb.warden.users_file import SAME, Users, read_users


def users(options: argparse.Namespace) -> int:
    """Check the file, and show what it says of people; return 1 when something is wrong, or somebody may not."""
    path, people = options.file or USERS, list(options.people)
    if not path.exists() and options.file:
        raise UsageError(f"there is no file {path}")
    found, problems = _read(path)
    told = {name: _account_of(found, name) for name in people}
    if options.json:
        rows = {name: {"account": account, "refused": refused} for name, (account, refused) in told.items()}
        print_json({"file": str(path), "problems": problems, "people": rows})
    else:
        for problem in problems:
            print(problem)
        if not problems:
            alone = f"there is no {path}: each person's account is the one of the same name, and everybody may"
            print(f"{path} is in order" if path.exists() else alone)
        if told:
            print()
            print_table(("who", "account", "why not"), [(name, *each) for name, each in told.items()])
            if os.geteuid():
                print("\nonly root sees whether an account is locked or has expired")
    return 1 if problems or any(refused for _, refused in told.values()) else 0


def without_account(name: str) -> str:
    """Return why a person has no account on this computer, where it runs people as themselves; else ""."""
    return _account_of(_read(USERS)[0], name)[1] if USERS.exists() else ""


def _read(path: Path) -> tuple[Users, list[str]]:
    """Return what a file says, and what is wrong with it, as "FILE, line 3: ..."."""
    if not path.exists():
        return Users(), []
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return Users(), [f"{path} can not be read: {error}"]
    found, problems = read_users(text)
    if path == USERS:
        try:
            check_only_root_writes(path)
        except Refused as refused:
            return found, [str(refused)]
    return found, [f"{path}, {problem}" for problem in problems or _unknown(found, text)]


def _unknown(found: Users, text: str) -> list[str]:
    """Return which accounts and groups this computer does not have."""
    lines = lines_of(text)
    named: list[tuple[tuple[str, ...], str]]
    named = [(("accounts", name), account) for name, account in found.accounts.items() if account != SAME]
    named += [(("allow",), word) for word in found.allow or ()]
    named += [(("limits", name), name) for name in found.limits if name != "*"]
    problems = [(line_of(lines, path), problem) for path, word in named if (problem := _missing(word))]
    return [f"line {line}: {problem}" for line, problem in sorted(problems)]


def _missing(word: str) -> str:
    is_group = word.startswith("@")
    look: Callable[[str], object] = grp.getgrnam if is_group else pwd.getpwnam
    try:
        look(word.removeprefix("@"))
    except KeyError:
        return f"there is no {'Unix group' if is_group else 'account'} {word.removeprefix('@')} on this computer"
    return ""


def _account_of(found: Users, name: str) -> tuple[str, str]:
    """Return a person's account and "", or "" and why there is none that they may use."""
    if not PERSON.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a person: letters, digits and _.@+-")
    account = found.account_of(name)
    if account is None:
        return "", "the file has no account for this name"
    try:
        told = look_up(account) if os.geteuid() else look_up_allowed([account])[account]
    except Refused as refused:
        told = str(refused)
    if isinstance(told, str):
        return "", told
    return (account, "") if found.may(account, told.groups) else ("", f"`allow` does not name {account}")
