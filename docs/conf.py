"""How Sphinx makes the site of these pages: `make site`.

The pages stay as GitHub shows them. What only the site needs is done here while a page is read: pictures for light and
dark, links that lead out of docs/, and the list of the guide's pages.
"""

import json
import re
from pathlib import Path
from typing import ClassVar

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, inherit, this, using
from pygments.lexers.special import TextLexer
from pygments.token import Operator, Text
from sphinx.application import Sphinx

from monarch_nb.config import VERSION

DOCS = Path(__file__).parent
MERMAID = DOCS.parent / "labextension" / "node_modules" / "@mermaid-js" / "tiny" / "dist"
"""What draws Mermaid's drawings in the reader's browser; the site fetches nothing from elsewhere."""

project = "monarch_nb"
author = "monarch_nb developers"
project_copyright = author
release = version = VERSION

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "off"  # docs/notebooks has them as they were executed: `make executed`
nb_merge_streams = True
copybutton_prompt_text = "$ "

add_module_names = False
INTERNAL = (
    *("on_lost", "on_event", "on_finished", "on_link", "on_node_replaced", "on_output", "on_queued", "on_refused"),
    *("on_started", "emit", "follow", "left", "raise_failures", "replace_listener", "send_interrupt", "tell_line"),
    *("look_before_interrupt", "timed_out", "wait_freed", "wait_news", "collected", "join", "ended"),
    *("ended_well", "is_unstopped", "may_kill", "shows", "stop_ranks"),  # of a run
    *("addresses", "attach_run", "complete", "flag", "inspect", "log_batches", "numbers"),  # of a mesh
    *("one_per_node", "open_calls", "run_program", "running", "start_script", "unfinished", "where"),
    *("actor_infos", "all_meshes", "full_name", "held", "is_attached", "is_mine"),
    *("from_facts", "to_facts", "groups", "told", "of", "places", "starting", "at", "target_at", "ranked"),
    "logging_option",  # Monarch's, without effect
)
"""Members that only monarch_nb's own parts call: the reference leaves them out."""
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "exclude-members": ", ".join(INTERNAL)}
python_maximum_signature_line_length = 80

mermaid_use_local = "mermaid.mjs"

html_theme = "pydata_sphinx_theme"
html_title = f"monarch_nb {VERSION}"
html_static_path = ["_static", str(MERMAID)]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)"\s+src="(?P<light>[^"]+)"(?:\s+width="(?P<width>\d+)")?>\s*</picture>'
)
_OUTSIDE = {
    "](../docs/": "](../",  # in notebooks, which are one folder deeper here
    "](../notebooks/": "](project:notebooks/",
    "](../CONTRIBUTING.md": "](sections/contributing.md",
    "](../CHANGELOG.md": "](sections/changelog.md",
}
"""Where a link that leads out of docs/ leads on the site."""


_MARKUP = re.compile(r"(?<![`:])`(?P<code>[^`\n]+)`(?!`)|\*(?=\.)|_(?=…)")
"""In docstrings: code as these pages write it, and what reStructuredText would take for the begin of markup."""


class CellLexer(IPython3Lexer):
    """Python with magics, and lines of the shell whose output is unpacked."""

    tokens: ClassVar = {
        "root": [
            (r"(?s)(%%(?:mesh|time|writefile))([^\n]*\n)(.*)", bygroups(Operator, Text, using(this))),
            (r"(\[\w+\] = )(!)", bygroups(Text, Operator)),
            inherit,
        ]
    }


def _two_pictures(match: re.Match[str]) -> str:
    """Return what shows a picture in the theme that the reader chose."""
    width = f":width: {match['width']}px\n" if match["width"] else ""
    return "\n".join(
        f"```{{image}} {match[theme]}\n:alt: {match['alt']}\n:class: only-{theme}\n{width}```"
        for theme in ("light", "dark")
    )


def _pages_of_the_guide(found: set[str]) -> list[str]:
    """Return the pages that no section lists: a new page is in the guide until a section claims it."""
    sections = "\n".join(path.read_text() for path in (DOCS / "sections").glob("*.rst"))
    listed = set(re.findall(r"^   /(\S+)$", sections, re.MULTILINE))
    return sorted(name for name in found if "/" not in name and name not in listed | {"index"})


def _with_prose_of_now(docname: str, executed: str) -> str:
    """Return an executed notebook with the text that notebooks/ has between the cells now."""
    notebook, now = json.loads(executed), json.loads((DOCS.parent / f"{docname}.ipynb").read_text())
    for cell, written in zip(notebook["cells"], now["cells"], strict=True):
        if cell["cell_type"] == "markdown":
            cell["source"] = written["source"]
    return json.dumps(notebook)


def _adapt(app: Sphinx, docname: str, source: list[str]) -> None:
    """Have a page fit for the site."""
    text = _with_prose_of_now(docname, source[0]) if docname.startswith("notebooks/") else source[0]
    text = _PICTURE.sub(_two_pictures, text)
    for link, here in _OUTSIDE.items():
        text = text.replace(link, here)
    if docname == "index":
        text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(
            f"sections/{name}" for name in ("guide", "nodes", "reference", "notebooks", "internals", "project")
        )
        text += "\n```\n"
    if docname == "sections/guide":
        text += "".join(f"   /{name}\n" for name in _pages_of_the_guide(app.project.docnames))
    source[0] = text


def _docstring(_app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Have what docstrings write as `code` be code, as in these pages; to Sphinx it is a reference."""

    def literal(match: re.Match[str]) -> str:
        return f"``{match['code']}``\\ " if match["code"] else f"\\{match[0]}"

    lines[:] = [_MARKUP.sub(literal, line) for line in lines]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    for language in ("python", "ipython3"):
        app.add_lexer(language, CellLexer)
    app.add_lexer("nft", TextLexer)
    app.connect("autodoc-process-docstring", _docstring, priority=400)  # before napoleon
    app.connect("source-read", _adapt)
