"""The public surface: what `import monarch_nb` offers."""

import inspect

import pytest

import monarch_nb
from monarch_nb import errors


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in monarch_nb.__all__:
        value = getattr(monarch_nb, name)
        assert name == "__version__" or inspect.getdoc(value), name
    assert sorted(monarch_nb.__all__) == monarch_nb.__all__
    assert set(monarch_nb.__all__) <= set(dir(monarch_nb))


def test_every_error_is_public() -> None:
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined <= set(monarch_nb.__all__)


def test_public_functions_and_methods_are_typed_and_documented() -> None:
    for name in monarch_nb.__all__:
        value = getattr(monarch_nb, name)
        functions = [value] if inspect.isfunction(value) else []
        if inspect.isclass(value) and not issubclass(value, Exception):
            # on_…: what connections call, described by client.connection.RunListener.
            public = {key: member for key, member in vars(value).items() if not key.startswith(("_", "on_"))}
            functions += [member for member in public.values() if inspect.isfunction(member)]
        for function in functions:
            assert inspect.getdoc(function), f"{name}.{function.__name__}"
            assert "return" in function.__annotations__, f"{name}.{function.__name__}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'reserv'"):
        monarch_nb.reserv  # noqa: B018
