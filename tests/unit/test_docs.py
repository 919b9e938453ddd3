"""README and docs: links lead somewhere, snippets are read by what they are written for, help texts are current."""

import ast
import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from monarch_nb.cli.main import make_parser
from monarch_nb.notebook.syntax.command_line import parse
from monarch_nb.notebook.syntax.declarations import CELL, MESH
from pages import blocks

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "internals").glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *ARCHITECTURE[1:]]
ROOMS = [each.parent for each in sorted((ROOT / "monarch_nb").glob("*/**/__init__.py")) if "proto" not in each.parts]
EVERYWHERE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def snippets(page: Path, language: str) -> list[str]:
    return [block.text for block in blocks(page) if block.language == language]


@pytest.fixture(scope="module")
def docs_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@EVERYWHERE
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [target for target in targets if not target.startswith("http")]
    assert [target for target in local if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Return whether there is the file, and the heading in it, that a link of a page names."""
    path, _, heading = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not heading or heading in headings(file))


def headings(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    without_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    texts = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", ARCHITECTURE, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """Every path from the checkout's folder, or in drawings from `monarch_nb`. `client/ID` is none of ours."""
    folders = [ROOT, ROOT / "monarch_nb"]
    first = "|".join(path.name for folder in folders for path in folder.glob("[a-z]*") if path.is_dir())
    named = re.findall(rf"(?<![\w./])(?:{first})/(?:[\w-]+/)*[a-z_][\w-]*(?:\.[a-z]+)?", page.read_text())
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


@EVERYWHERE
def test_help_texts_are_current(page: Path, docs_script: ModuleType) -> None:
    assert docs_script.render(page.read_text()) == page.read_text(), "run make docs"


@EVERYWHERE
def test_python_snippets_can_be_read(page: Path) -> None:
    for code in snippets(page, "python"):
        if code.startswith("%%mesh"):
            code = code.partition("\n")[2]
        ast.parse(TransformerManager().transform_cell(code))


@EVERYWHERE
def test_magic_lines_use_flags_that_exist(page: Path) -> None:
    for line in magic_lines(page):
        name, _, rest = line.partition(" ")
        if name == "%%mesh":
            parse(CELL, rest)
        else:
            word, _, rest = rest.partition(" ")
            command = MESH.find(word)
            if rest:
                parse(command, rest)


@EVERYWHERE
def test_cells_are_run_or_say_why_not(page: Path) -> None:
    """tests/integration/test_pages.py runs those below `%load_ext monarch_nb`."""
    above = itertools.takewhile(lambda block: not block.begins, blocks(page))
    cells = [block for block in above if block.language == "python" and block.text.startswith("%%mesh")]
    assert [cell.text for cell in cells if not cell.why_not] == []


def magic_lines(page: Path) -> Iterator[str]:
    """Yield the magics of snippets and of inline code; placeholders are left out."""
    for code in [*snippets(page, "python"), *re.findall(r"`(%+mesh[^`\n]*)`", page.read_text())]:
        for line in code.splitlines():
            magic = re.match(r"(?:\w+ = )?(%+mesh(?: .*)?)$", line)
            if magic and magic[1] != "%mesh" and not re.search(r"[|…\[]|[A-Z]{3}", magic[1]):
                yield magic[1]


@EVERYWHERE
def test_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for code in snippets(page, "console"):
        for line in code.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["make"]:
                assert {word for word in words[1:] if "=" not in word} <= targets
            elif words[:1] == ["monarch-nb"] and words[1:2] != ["allocator"]:
                make_parser().parse_args(words[1:])


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_rooms_name_what_is_in_them(room: Path) -> None:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    inside = {each.stem for each in room.glob("*.py")} | {each.parent.name for each in room.glob("*/__init__.py")}
    unnamed = {name for name in inside - {"__init__", "__main__"} if not re.search(rf"\b{name}\b", text)}
    assert len(inside) < 4 or not unnamed
