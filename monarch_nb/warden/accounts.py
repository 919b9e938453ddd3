"""Whether there is an account of a name, and whether it may be used. A process of its own looks: the directory of
accounts (LDAP, SSSD) and PAM run other people's code."""

import grp
import os
import pwd
import stat
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monarch_nb.warden import pam
from monarch_nb.warden.requests import Refused
from monarch_nb.warden.starting import Account, in_child

FIRST_UID = 1000
NOBODY = 65534
_DAY_S = 86400
_NO_SHELLS = ("nologin", "false")


def look_up(name: str) -> Account:
    """Return an account, whoever it is.

    Raises:
        Refused: there is none.
    """
    told = in_child(lambda: _facts(name))
    if "refused" in told:
        raise Refused(told["refused"])
    return _account(told)


def look_up_allowed(names: Iterable[str]) -> dict[str, Account | str]:
    """Return accounts that people may use now. Of the others, return why not: there is none, it is the system's, it is
    locked or expired, or PAM refuses it."""
    wanted = sorted(set(names))
    told = in_child(lambda: {name: _allowed_or_not(name) for name in wanted}) if wanted else {}
    if isinstance(refused := told.get("refused"), str):
        return dict.fromkeys(wanted, refused)
    return {name: facts if isinstance(facts, str) else _account(facts) for name, facts in told.items()}


def check_only_root_writes(path: Path) -> None:
    """Raise Refused when others than root may change a file or directory, or put another in its place."""
    for each in (path, *path.absolute().parents):
        told = each.lstat()
        is_shared = each != path and told.st_mode & stat.S_ISVTX  # as /tmp: each removes only their own
        if told.st_uid or stat.S_ISLNK(told.st_mode) or (told.st_mode & 0o022 and not is_shared):
            raise Refused(f"{each} is a link, or others than root may write it: nothing that it says or has counts")


def _account(facts: dict[str, Any]) -> Account:
    return Account(**{**facts, "groups": tuple(facts["groups"])})


def _allowed_or_not(name: str) -> dict[str, Any] | str:
    try:
        return _allowed(name)
    except Refused as refused:
        return str(refused)


def _facts(name: str) -> dict[str, Any]:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"there is no account {name} on {os.uname().nodename}") from None
    groups = []
    for gid in os.getgrouplist(name, found.pw_gid):
        try:
            groups.append(grp.getgrgid(gid).gr_name)
        except KeyError:  # a number without a name
            continue
    shell = found.pw_shell or "/bin/sh"
    return asdict(Account(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir or "/", shell, tuple(groups)))


def _allowed(name: str) -> dict[str, Any]:
    facts = _facts(name)
    if facts["name"] != name or facts["uid"] < FIRST_UID or facts["uid"] == NOBODY:
        raise Refused(f"the account {name} is the system's (uid {facts['uid']}), not a person's")
    if Path(facts["shell"]).name in _NO_SHELLS:
        raise Refused(f"the account {name} is for nobody to log in (its shell is {facts['shell']})")
    _check_shadow(name)
    if pam.is_there():
        pam.Pam(name).check()
    return facts


def _check_shadow(name: str) -> None:
    """A password that was locked is `!` and then what it was; `!` alone was never one, as of who logs in with keys."""
    for line in Path("/etc/shadow").read_text().splitlines():
        fields = line.split(":")
        if fields[0] != name or len(fields) < 8:
            continue
        if fields[1].startswith("!") and fields[1].strip("!*"):
            raise Refused(f"the account {name} is locked")
        if fields[7] and int(fields[7]) * _DAY_S <= time.time():
            raise Refused(f"the account {name} has expired")
