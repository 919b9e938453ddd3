"""One MIME bundle, as a rank displayed it, becomes a piece of HTML, or of text."""

import base64
import html
import json
from collections.abc import Mapping
from typing import Any

from monarch_nb import escapes

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_TEXTS = ("text/markdown", "text/latex", "application/json", "text/plain")
_CONTENT_FONT = "font-family:var(--jp-content-font-family,var(--vscode-font-family,system-ui,sans-serif))"
_MAX_CHARACTERS = 20_000


def is_rich(data: Mapping[str, Any]) -> bool:
    """Return whether the bundle has more to show than text."""
    return "text/html" in data or any(mime in data for mime in _IMAGES)


def rich_html(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return the HTML of a bundle that `is_rich`."""
    if "text/html" in data:
        return f'<div style="{_CONTENT_FONT}">{_text(data["text/html"])}</div>'
    mime = next(mime for mime in _IMAGES if mime in data)
    return _image(mime, _text(data[mime]), plain_text(data), metadata.get(mime))


def plain_text(data: Mapping[str, Any]) -> str:
    """Return the text of a bundle, whatever it has; very long text loses its middle."""
    for mime in ("text/plain", *_TEXTS):
        if mime in data:
            text = data[mime] if isinstance(data[mime], (str, list)) else json.dumps(data[mime], default=str)
            return cut_middle(_text(text), _MAX_CHARACTERS)
    return f"<{next(iter(data), 'nothing')}>"


def best_text(data: Mapping[str, Any]) -> str:
    """Return the text to show of a bundle that is not rich: markdown or LaTeX rather than a repr."""
    preferred = {mime: data[mime] for mime in ("text/markdown", "text/latex") if mime in data}
    return plain_text({"text/plain": next(iter(preferred.values()))} if preferred else data)


def cut_middle(text: str, characters: int) -> str:
    """Return `text`, or its beginning and its end with a count between them."""
    if len(text) <= characters:
        return text
    head, tail = characters // 3, characters - characters // 3
    return f"{text[:head]}\n… ({len(text) - characters:,} characters not shown) …\n{text[-tail:]}"


def _image(mime: str, content: str, alternative: str, facts: Any) -> str:
    if mime == "image/svg+xml":  # as an image, so that ids of several figures do not meet
        content = base64.b64encode(content.encode(errors="replace")).decode()
    facts = facts if isinstance(facts, Mapping) else {}
    sizes = "".join(f' {side}="{float(facts[side]):g}"' for side in ("width", "height") if _is_number(facts.get(side)))
    style = "display:block;max-width:100%" + ";background:#fff" * (facts.get("needs_background") == "light")
    label = html.escape(escapes.strip(alternative)[:200])
    source = html.escape("".join(content.split()))
    return f'<img src="data:{mime};base64,{source}" alt="{label}"{sizes} style="{style}">'


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """Jupyter allows a list of lines where it means text."""
    return "".join(map(str, value)) if isinstance(value, list) else str(value)
