"""ANSI escape codes and control characters in text: what they look like, and the text without them."""

import re

ESCAPE = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~])"  # control sequence: parameters, final letter ("m" is a colour)
    r"|\x1b[\]PX^_](?:[^\x07\x1b]|\x1b(?!\\))*(?:\x07|\x1b\\)"  # strings: window titles, hyperlinks
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two characters
)
INCOMPLETE_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_](?:[^\x07\x1b]|\x1b(?!\\))*|[ -/]*)\Z")
"""An escape code whose end is still to come."""

_UNPRINTABLE: dict[int, str | None] = {
    **dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), 0xFFFE, 0xFFFF]),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # lone surrogates can not be sent
}


def strip(text: str) -> str:
    """Return `text` without escape codes and control characters."""
    return clean(ESCAPE.sub("", text) if "\x1b" in text else text)


def clean(text: str) -> str:
    """Return `text` without control characters but for tabs and line ends."""
    return text if text.isprintable() else text.translate(_UNPRINTABLE)
