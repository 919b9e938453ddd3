"""What the client's messages advise, as it is typed in a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from monarch_nb.config import POOL_VARIABLE

_HINTS = (
    (r" starts one, and so does %mesh reserve", " starts one"),
    (r": %mesh reserve NAME (--nodes \d+ --procs \d+)", r": monarch-nb run \1 SCRIPT reserves ranks for a script"),
    (r"%%mesh --mesh (\S+) runs a cell there", r"monarch-nb run --mesh \1 SCRIPT runs a script there"),
    (r"\(default: this notebook's\)", "(default: the only one you hold)"),
    (r" \(%mesh help \w+\)", ""),
    (r"■ \((Ctrl-C)\)", r"\1"),
    (r"%mesh (release|replace|grow|shrink|stop|doctor|list|status|logs|plot|debug)\b", r"monarch-nb \1"),
)
_NAMED_POOL = re.compile(rf"--pool (\S+), or {POOL_VARIABLE}=\1")


def typed_here(text: str, words: Sequence[str] = ()) -> str:
    """Return a message of the client's with what to type in a terminal, where `words` were typed."""
    for pattern, advice in _HINTS:
        text = re.sub(pattern, advice, text)
    if words and not any(word.partition("=")[0] == "--pool" for word in words):
        before, after = words[0], shlex.join(words[1:])
        text = _NAMED_POOL.sub(lambda match: f"monarch-nb {before} --pool {match[1]} {after}".rstrip(), text)
    return text
