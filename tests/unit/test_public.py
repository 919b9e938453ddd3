"""The public surface: what `import monarch_nb` offers."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import monarch_nb
from monarch_nb import errors

DOCS = Path(__file__).parents[2] / "docs" / "python.md"


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in monarch_nb.__all__:
        value = getattr(monarch_nb, name)
        assert name == "__version__" or inspect.getdoc(value), name
    assert sorted(monarch_nb.__all__) == monarch_nb.__all__
    assert set(monarch_nb.__all__) <= set(dir(monarch_nb))


def test_every_error_says_what_it_is() -> None:
    own = [value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__]
    assert all(inspect.getdoc(value) for value in own)
    assert monarch_nb.errors is errors


@pytest.mark.parametrize("section", ["Errors", "Reports and infos"])
def test_what_the_docs_name_is_where_they_say(section: str) -> None:
    tables = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)
    (table,) = (text for text in tables if text.startswith(section))
    rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| `")]
    assert len(rows) > 5
    for names, *_, home in rows:
        module = importlib.import_module("monarch_nb.errors" if section == "Errors" else home.strip(" `"))
        for name in re.findall(r"`(\w+)`", names):
            assert getattr(module, name).__module__ == module.__name__


def test_public_functions_and_methods_are_typed_and_documented() -> None:
    for name in monarch_nb.__all__:
        value = getattr(monarch_nb, name)
        functions = [value] if inspect.isfunction(value) else []
        if inspect.isclass(value) and not issubclass(value, Exception):
            # on_…: what connections call, described by client.connections.connection.RunListener.
            public = {key: member for key, member in vars(value).items() if not key.startswith(("_", "on_"))}
            functions += [member for member in public.values() if inspect.isfunction(member)]
        for function in functions:
            assert inspect.getdoc(function), f"{name}.{function.__name__}"
            assert "return" in function.__annotations__, f"{name}.{function.__name__}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'reserv'"):
        monarch_nb.reserv  # noqa: B018
    with pytest.raises(AttributeError, match=r"it is monarch_nb\.errors\.RunFailed"):
        monarch_nb.RunFailed  # noqa: B018
