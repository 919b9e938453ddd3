"""Forms are read back with a message for each field."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.panel.forms import extend_form, reserve_form, up_form
from monarch_nb.panel.refusal import Refused
from monarch_nb.provision.local import LocalProvisioner
from unit.panel.replies import hold, node, view_of

VALUES = {"name": "dev", "nodes": 1, "kind": "procs", "per_node": 2}


def read(**changes: object) -> dict[str, Any]:
    return reserve_form(view_of(node(), node("node1"))).read(VALUES | changes)


def errors(**changes: object) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        read(**changes)
    assert refused.value.status == 400
    return refused.value.errors


def test_what_is_filled_in_is_read() -> None:
    assert read(time="2h", idle="  ") == {**VALUES, "time": 7200.0, "idle": None, "wait": False}
    assert read(nodes="2")["nodes"] == 2  # as an input's value is
    assert read(nodes=2.0)["nodes"] == 2


def test_nonsense_is_refused_at_its_field_with_a_message() -> None:
    for field, value, message in (
        *(("nodes", value, "") for value in (-1, "x", 1.5, True, [], {})),
        ("nodes", 0, "at least 1"),
        ("nodes", 65, "at most 64"),
        ("name", "", ""),
        ("name", 3, ""),
        ("kind", "gpus", ""),
        ("time", "soon", "90m"),
        ("time", "8", ""),
        ("time", "-1h", ""),
        ("idle", True, ""),
        ("nonsense", 1, ""),
    ):
        refused = errors(**{field: value})
        assert (list(refused), message in refused[field]) == ([field], True), (field, value)
    assert set(errors(nodes=0, time="soon")) == {"nodes", "time"}
    for values in (None, [], "x"):
        with pytest.raises(Refused):
            extend_form().read(values)
    with pytest.raises(Refused) as not_boolean:
        up_form(LocalProvisioner(), "lab").read({"isolate": "yes"})
    assert list(not_boolean.value.errors) == ["isolate"]


def test_the_reserve_form_knows_the_pool() -> None:
    fields = {field.name: field for field in reserve_form(view_of(node(gpus=8), node("node1"))).fields}
    assert (fields["nodes"].minimum, fields["nodes"].maximum) == (1, 64)
    assert [choice["value"] for choice in fields["kind"].choices] == ["gpus", "procs"]
    assert (fields["per_node"].default, fields["per_node"].maximum) == (8, 256)
    assert fields["force_busy"].default is False
    reply = node()
    hold([reply], "main", procs=1)
    fields = {field.name: field for field in reserve_form(view_of(reply)).fields}
    assert [choice["value"] for choice in fields["kind"].choices] == ["procs"]
    assert "force_busy" not in fields
    assert fields["name"].default == "main-2"


def test_the_local_pools_options_are_arguments_of_up() -> None:
    values = up_form(LocalProvisioner(), "lab").read({})
    assert values.keys() <= LocalProvisioner.up.__kwdefaults__.keys() | set(LocalProvisioner.up.__annotations__)
