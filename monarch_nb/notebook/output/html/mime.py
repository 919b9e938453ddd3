"""One MIME bundle, as a rank displayed it, becomes a piece of HTML, or of text."""

import base64
import html
import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from monarch_nb.ground import escapes

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_TEXTS = ("text/markdown", "text/plain", "text/latex", "application/json")
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_DRAWN_HERE = {"text/html", *_TEXTS, *_IMAGES, _WIDGET_VIEW} - {"application/json"}
_LARGE_CHARACTERS = 1_000_000
_CODE_OR_MATH = re.compile(r"(`+).*?\1|\$\$.+?\$\$|\$(?=\S)[^$\n]+(?<=\S)\$(?!\d)", re.DOTALL)
_MATH_PLACE = re.compile("\ue000(\\d+)\ue001")
_CONTENT_FONT = "font-family:var(--jp-content-font-family,var(--vscode-font-family,system-ui,sans-serif))"
_MAX_CHARACTERS = 20_000
_ENDS_EARLY = re.compile(r"\n *\.\.\.[\])}]+$")
"""What IPython writes of a list, set or dictionary after its 1,000th element."""


def stands_alone(data: Mapping[str, Any]) -> bool:
    """Return whether the front end is to show a bundle by itself: it draws what we do not (JSON, maps, charts, PDF,
    JavaScript), or is so large that it is not to be sent again with every line that is printed."""
    if any(mime not in _DRAWN_HERE for mime in data):
        return True
    return is_rich(data) and sum(len(_text(content)) for content in data.values()) > _LARGE_CHARACTERS


def is_rich(data: Mapping[str, Any]) -> bool:
    """Return whether the bundle has more to show than text."""
    return any(mime in data for mime in ("text/html", "text/markdown", *_IMAGES))


def rich_html(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return the HTML of a bundle that `is_rich`."""
    if "text/html" in data:
        return f'<div style="{_CONTENT_FONT}">{_text(data["text/html"])}</div>'
    if "text/markdown" in data:
        return f'<div style="{_CONTENT_FONT}">{_markdown_html(plain_text(data))}</div>'
    mime = next(mime for mime in _IMAGES if mime in data)
    return _image(mime, _text(data[mime]), plain_text(data), metadata.get(mime))


def plain_text(data: Mapping[str, Any], hint: str = "") -> str:
    """Return the text of a bundle, whatever it has; very long text loses its middle, and IPython leaves out the
    end of a long list. `hint` says who has it.

    Markdown and JSON are their own text: what else objects have is often a mere `<IPython.core.display.JSON object>`.
    """
    texts = ("application/json", *_TEXTS) if _says_nothing(data.get("text/plain")) else _TEXTS
    for mime in ("text/plain", *_TEXTS) if "text/html" in data else texts:
        if mime in data:
            is_text = isinstance(data[mime], str if mime == "application/json" else (str, list))
            text = _text(data[mime]) if is_text else json.dumps(data[mime], default=str)
            if hint and len(text) <= _MAX_CHARACTERS and _ENDS_EARLY.search(text):
                return f"{text}\n… (more elements not shown{hint}) …"
            return cut_middle(text, _MAX_CHARACTERS, hint)
    return f"<{next(iter(data), 'nothing')}>"


def _says_nothing(text: object) -> bool:
    return isinstance(text, str) and text.startswith("<IPython.core.display.")


def best_text(data: Mapping[str, Any], hint: str = "") -> str:
    """Return the text to show of a bundle that is not rich: LaTeX, which notebooks typeset, rather than a repr."""
    return plain_text({"text/plain": data["text/latex"]} if "text/latex" in data else data, hint)


def cut_middle(text: str, characters: int, hint: str = "") -> str:
    """Return `text`, or its beginning and its end with a count between them, and where all of it is."""
    if len(text) <= characters:
        return text
    head, tail = characters // 3, characters - characters // 3
    return f"{text[:head]}\n… ({len(text) - characters:,} characters not shown{hint}) …\n{text[-tail:]}"


@lru_cache(256)
def _markdown_html(text: str) -> str:
    """Return Markdown as HTML; math stays as it is, for the notebook to typeset."""
    formulas: list[str] = []

    def take(match: re.Match[str]) -> str:
        if match[1]:  # code
            return match[0]
        formulas.append(match[0])
        return f"\ue000{len(formulas) - 1}\ue001"

    markup = _markdown_parser().render(_CODE_OR_MATH.sub(take, text))
    return _MATH_PLACE.sub(lambda match: html.escape(formulas[int(match[1])], quote=False), markup)


@cache
def _markdown_parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


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
