"""Write the help texts of the commands and magics into the pages of docs/, or check that they are there (`--check`).

A page marks each place: `<!-- help: monarch-nb up -->`, `<!-- help: %mesh reserve -->` or `<!-- help: %%mesh -->`, up
to `<!-- /help -->`. Those of monarch-nb are written by Python 3.11 alone: argparse of newer ones prints them otherwise.
"""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

from monarch_nb.cli.main import main as monarch_nb
from monarch_nb.client.scripts.torchrun_flags import MEANT
from monarch_nb.notebook.syntax import meant
from monarch_nb.notebook.syntax.command_line import help_text, overview
from monarch_nb.notebook.syntax.declarations import CELL, MESH

ARGPARSE = (3, 11)
"""The Python whose argparse writes the help texts of monarch-nb; others leave them as they are."""
DOCS = Path(__file__).resolve().parent.parent / "docs"
_BLOCK = re.compile(r"(<!-- help: (?P<command>.+?) -->\n).*?(<!-- /help -->)", re.DOTALL)


def render(page: str) -> str:
    """Return the page with every help text as it is now."""

    def fresh(match: re.Match[str]) -> str:
        if match["command"].startswith("monarch-nb") and sys.version_info[:2] != ARGPARSE:
            return match[0]
        return f"{match[1]}```text\n{help_of(match['command'])}\n```\n{match[3]}"

    return _BLOCK.sub(fresh, page)


def help_of(command: str) -> str:
    """Return the help text of `monarch-nb …`, `%mesh …` or `%%mesh`, or what torchrun's flags or other tools' words
    mean."""
    name, *words = command.split()
    if name == "torchrun":
        rows = [(f"{flag.short}, {flag.name}".removeprefix(", "), flag.value, flag.help) for flag in MEANT]
        return "\n".join(f"{f'{names} {value}':<36}{text}".rstrip() for names, value, text in rows)
    if name == "words":
        flags = {flag: " or ".join(here).replace(meant.NAME, "the name") for flag, here in meant.FLAGS.items()}
        here = {**meant.COMMANDS, **flags}
        words_of = {ours: [word for word in here if here[word] == ours] for ours in here.values()}
        return "\n".join(f"{', '.join(theirs):<40}{ours}" for ours, theirs in words_of.items())
    if name == "%%mesh":
        return help_text(CELL).rstrip()
    if name == "%mesh":
        return (help_text(MESH.find(words[0])) if words else overview(MESH)).rstrip()
    printed = io.StringIO()
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        monarch_nb([*words, "--help"])
    return printed.getvalue().rstrip()


def main() -> int:
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text()
        if (fresh := render(page)) != page:
            stale.append(path.name)
            if "--check" not in sys.argv[1:]:
                path.write_text(fresh)
    if not stale:
        print("the help texts in docs/ are up to date")
        return 0
    print(f"{'out of date' if '--check' in sys.argv[1:] else 'wrote'}: {', '.join(stale)}")
    return 1 if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
