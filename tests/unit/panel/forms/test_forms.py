"""Forms are read back with a message for each field."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.panel.forms.forms import Field, extend_form, reserve_form, up_form
from monarch_nb.panel.refusal import Refused
from monarch_nb.provision import Option
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


@pytest.mark.parametrize("nodes", [0, 65, -1, "x", 1.5, True, [], {}])
def test_a_number_out_of_range_is_refused_at_its_field(nodes: object) -> None:
    assert list(errors(nodes=nodes)) == ["nodes"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
        ({"kind": "gpus"}, "kind"),
        ({"time": "8"}, "time"),
        ({"time": "-1h"}, "time"),
        ({"idle": True}, "idle"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_nonsense_is_refused_at_its_field(changes: dict[str, object], field: str) -> None:
    assert list(errors(**changes)) == [field]


def test_every_field_has_its_own_message() -> None:
    assert set(errors(nodes=0, time="soon")) == {"nodes", "time"}


@pytest.mark.parametrize("values", [None, [], "x"])
def test_no_values_at_all_are_refused(values: object) -> None:
    with pytest.raises(Refused):
        extend_form().read(values)


def test_the_reserve_form_knows_the_pool() -> None:
    fields = {field.name: field for field in reserve_form(view_of(node(gpus=8), node("node1"))).fields}
    assert (fields["nodes"].minimum, fields["nodes"].maximum) == (1, 64)
    assert [choice["value"] for choice in fields["kind"].choices] == ["gpus", "procs"]
    assert (fields["per_node"].default, fields["per_node"].maximum) == (8, 256)
    assert fields["force_busy"].default is False


def test_a_pool_without_gpus_offers_none() -> None:
    fields = {field.name: field for field in reserve_form(view_of(node())).fields}
    assert [choice["value"] for choice in fields["kind"].choices] == ["procs"]
    assert "force_busy" not in fields


def test_a_name_that_is_held_is_not_suggested() -> None:
    reply = node()
    hold([reply], "main", procs=1)
    fields = {field.name: field for field in reserve_form(view_of(reply)).fields}
    assert fields["name"].default == "main-2"


def test_a_pools_form_is_what_its_provisioner_declares() -> None:
    class Cloud(LocalProvisioner):
        title = "cloud"

        def options(self, *, pool: str = "local") -> list[Option]:
            return [Option("zone", "Zone", "choice", "a", choices=(("a", "Zone A"), ("b", "Zone B")))]

    form = up_form(Cloud(), "lab")
    assert form.title == "Start a cloud"
    assert form.fields == [
        Field(
            "zone",
            "Zone",
            "choice",
            "a",
            choices=[{"value": "a", "label": "Zone A"}, {"value": "b", "label": "Zone B"}],
        )
    ]


def test_the_local_pools_options_are_arguments_of_up() -> None:
    values = up_form(LocalProvisioner(), "lab").read({})
    assert values.keys() <= LocalProvisioner.up.__kwdefaults__.keys() | set(LocalProvisioner.up.__annotations__)


def test_a_boolean_is_true_or_false() -> None:
    with pytest.raises(Refused) as refused:
        up_form(LocalProvisioner(), "lab").read({"isolate": "yes"})
    assert list(refused.value.errors) == ["isolate"]
