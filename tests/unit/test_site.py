"""What `make site` takes for granted: pages for all launchers, notebooks as they are now, examples."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import monarch_nb
import monarch_nb.actor
from monarch_nb.provision import ENTRY_POINTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_every_launcher_has_a_page_among_the_nodes() -> None:
    listed = re.findall(r"^   /(\S+)$", (DOCS / "sections" / "nodes.rst").read_text(), re.MULTILINE)
    pages = {name: (DOCS / f"{name}.md").read_text() for name in listed}
    engines = {point.name for point in entry_points(group=ENTRY_POINTS)}
    assert "local" in pages
    assert "pools" in pages, "hosts"
    for engine in engines - {"local", "hosts"}:
        assert any(re.search(rf"--on {engine}\b", page) for page in pages.values()), engine


def code(path: Path) -> list[str]:
    """Return the code of a notebook's cells, and "" for text. Slurm's was executed on fewer nodes than it names."""
    cells = nbformat.read(path, as_version=4).cells
    return [re.sub(r"(--n?nodes[ =])\d", r"\1", cell.source) if cell.cell_type == "code" else "" for cell in cells]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_of_the_site_are_those_that_were_executed(notebook: Path) -> None:
    executed = DOCS / "notebooks" / notebook.name
    assert code(executed) == code(notebook), "make executed"
    assert any(cell.get("outputs") for cell in nbformat.read(executed, as_version=4).cells)


@pytest.mark.parametrize("module", [monarch_nb, monarch_nb.actor], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name_with_an_example(module: ModuleType) -> None:
    reference = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.rst"))
    for name in module.__all__:
        if name not in ("__version__", "errors"):
            homes = rf"^ *\.\. auto\w+:: (monarch_nb\.(actor\.)?)?{name}$"
            assert re.search(homes, reference, re.MULTILINE), f"{module.__name__}.{name} is not in docs/reference"
            assert examples(getattr(module, name)), f"{module.__name__}.{name} has no example"


def examples(documented: object) -> str:
    found = doctest.DocTestParser().get_examples(inspect.getdoc(documented) or "")
    return "\n".join(example.source for example in found)


@pytest.mark.parametrize("module", [monarch_nb, monarch_nb.actor], ids=lambda module: module.__name__)
def test_every_method_of_the_reference_is_used_in_an_example(module: ModuleType) -> None:
    internal = set(re.findall(r'"(\w+)"', (DOCS / "conf.py").read_text().split("INTERNAL = (")[1].split("\n)\n")[0]))
    public = [getattr(module, name) for name in module.__all__]
    members = {
        (documented.__name__, name): member.fget if isinstance(member, property) else member
        for documented in filter(inspect.isclass, public)
        for name, member in inspect.getmembers(documented)
        if name not in internal and not name.startswith("_")
    }
    ours = {names: each for names, each in members.items() if "monarch_nb" in str(getattr(each, "__module__", ""))}
    used = "\n".join(map(examples, [*public, *ours.values()]))
    assert [".".join(names) for names in ours if not re.search(rf"\.{names[1]}\b", used)] == []
