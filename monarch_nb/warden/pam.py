"""PAM through ctypes: whether it lets an account in, and its session. Modules of PAM are other people's code: only
processes that end soon, or become somebody else, call this."""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p
from pathlib import Path

from monarch_nb.warden.requests import Refused

SERVICE = "monarch-nb"
_PLACES = ("/etc/pam.d", "/usr/lib/pam.d", "/usr/etc/pam.d")
_TTY, _ESTABLISH, _DELETE, _PROMPTS, _CONVERSATION_FAILED = 3, 2, 4, (1, 2), 19


class _Message(ctypes.Structure):
    _fields_ = (("style", c_int), ("text", c_char_p))


_Converse = ctypes.CFUNCTYPE(c_int, c_int, POINTER(POINTER(_Message)), POINTER(c_void_p), c_void_p)


class _Conversation(ctypes.Structure):
    _fields_ = (("converse", _Converse), ("data", c_void_p))


def is_there() -> bool:
    """Return whether this machine has PAM and its administrator has said what it is to do for us."""
    return any(Path(place, SERVICE).exists() for place in _PLACES)


class Pam:
    """One conversation about an account; nobody is there who could answer a question."""

    def __init__(self, account: str) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.calloc.restype, self._libc.calloc.argtypes = c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
        self._library = ctypes.CDLL("libpam.so.0")
        self._library.pam_strerror.restype = c_char_p
        self._library.pam_getenvlist.restype = POINTER(c_char_p)
        self._handle, self._last, self._told = c_void_p(), 0, list[str]()
        self._conversation = _Conversation(_Converse(self._converse))
        self._call("pam_start", SERVICE.encode(), account.encode(), byref(self._conversation), byref(self._handle))
        self._call("pam_set_item", self._handle, _TTY, b"monarch-nb")

    def check(self) -> None:
        """Raise Refused unless the account may be used now."""
        self._call("pam_acct_mgmt", self._handle, 0)

    def open_session(self) -> dict[str, str]:
        """Open a session: this process gets the limits. Return the environment that modules have made."""
        self._call("pam_setcred", self._handle, _ESTABLISH)
        self._call("pam_open_session", self._handle, 0)
        found, listed = {}, self._library.pam_getenvlist(self._handle)
        for number in range(10_000):
            if not listed or listed[number] is None:
                break
            name, _, value = os.fsdecode(listed[number]).partition("=")
            found[name] = value
        return found

    def close_session(self) -> dict[str, str]:
        """Close a session that an earlier process has opened; the environment is empty again."""
        self._call("pam_close_session", self._handle, 0)
        self._call("pam_setcred", self._handle, _DELETE)
        self._library.pam_end(self._handle, self._last)
        return {}

    def _call(self, function: str, *arguments: object) -> None:
        self._last = getattr(self._library, function)(*arguments)
        if self._last:
            said = os.fsdecode(self._library.pam_strerror(self._handle, self._last) or b"").rstrip(".")
            why = "; ".join([said, *self._told])
            raise Refused(f"PAM refuses the account: {why} ({function}, {SERVICE})")

    def _converse(self, count: int, messages: object, responses: object, _: object) -> int:
        if any(messages[number].contents.style in _PROMPTS for number in range(count)):  # type: ignore[index]
            return _CONVERSATION_FAILED
        texts = [messages[number].contents.text or b"" for number in range(count)]  # type: ignore[index]
        self._told += [text.decode(errors="replace").strip() for text in texts]
        responses[0] = self._libc.calloc(count, 2 * ctypes.sizeof(c_void_p))  # type: ignore[index]
        return 0
