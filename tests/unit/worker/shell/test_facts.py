"""What a rank says of its value beside the text: true, small, and without waiting for others."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from monarch_nb.worker.shell.facts import MAX_DIGITS, WHOLE_ELEMENTS, facts_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (float("nan"), "nan"),
        (10**300, "1" + "0" * 300),
        (Decimal("1.10"), "1.10"),
        (Fraction(1, 4), "0.25"),
        (numpy.float32(0.1), "0.1"),
        (numpy.int64(-7), "-7"),
        (torch.tensor(2.31), "2.31"),
        (torch.tensor(2.25, dtype=torch.bfloat16), "2.25"),
        (torch.tensor(float("-inf")), "-inf"),
        (torch.tensor(2**62), str(2**62)),
    ],
)
def test_numbers(value: Any, text: str) -> None:
    assert facts_of(value) == {"number": text}
    assert facts_of({"loss": value}) == {"numbers": [["loss", text]]}
    assert facts_of([value, 1]) == {"numbers": [["[0]", text], ["[1]", "1"]]}


def test_what_has_none() -> None:
    others = [True, numpy.bool_(True), 1j, "2.5", 10 ** (MAX_DIGITS + 1), numpy.timedelta64(3, "s"), Decimal("sNaN")]
    for value in (*others, {}, [1] * 17, {"x" * 41: 1}, {"a": None}, numpy.array(["a"]), object()):
        assert facts_of(value) is None


def _tensor(value: Any) -> dict[str, Any]:
    facts = facts_of(value)
    assert facts is not None
    assert len(json.dumps(facts)) < 400
    tensor: dict[str, Any] = facts["tensor"]
    return tensor


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]
)
def test_statistics_of_tensors(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    about = {"type": "tensor", "shape": [4, 3], "dtype": str(dtype)[6:], "device": "cpu", "step": 1, "looked_at": 12}
    found = {"nan": 0, "inf": 0, "min": "0", "max": "11", "mean": "5.5"}
    assert _tensor(tensor.t()) == about | found
    if dtype.is_floating_point:
        tensor[0, 0], tensor[1, 1], tensor[2, 2] = float("nan"), float("inf"), float("-inf")
        got = _tensor(torch.nn.Parameter(tensor.t()))
        assert float(got.pop("mean")) == pytest.approx(51 / 9, rel=0.01)
        assert got == about | {"type": "Parameter", "nan": 1, "inf": 2, "min": "1", "max": "11"}
        facts = _tensor(torch.full((3,), float("nan"), dtype=dtype))
        assert (facts["nan"], "min" in facts) == (3, False), "one without any number"


def test_of_large_tensors_and_arrays_a_part_is_looked_at() -> None:
    large = torch.ones(WHOLE_ELEMENTS, 5)
    large[0, 0] = 7
    for each in (large, large.t(), large.numpy(), large.numpy().T):
        facts = _tensor(each)
        assert (facts["step"], facts["looked_at"]) == (5, WHOLE_ELEMENTS)
        assert (facts["min"], facts["max"], facts["nan"]) == ("1", "7", 0)


def test_tensors_without_statistics() -> None:
    sparse, none = torch.zeros(2, 2).to_sparse(), torch.zeros(0)
    for tensor in (torch.zeros(3, device="meta"), sparse, torch.zeros(2, dtype=torch.complex64), none):
        assert _tensor(tensor).keys() == {"type", "shape", "dtype", "device"}


def test_a_tensor_of_another_kind_is_asked_for_nothing() -> None:
    """Its elements may be on other ranks, which do not take part."""

    class Distributed(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.__name__ in ("where", "take", "item", "isfinite", "min", "to"):
                raise AssertionError(f"{function.__name__} would wait for the others")
            return super().__torch_function__(function, types, args, kwargs or {})

    value = torch.arange(3.0).as_subclass(Distributed)
    assert _tensor(value) == {"type": "Distributed", "shape": [3], "dtype": "float32", "device": "cpu"}
    assert _tensor(torch.tensor(1.0).as_subclass(Distributed))["shape"] == []


def test_nothing_is_imported() -> None:
    code = (
        "import sys; from monarch_nb.worker.shell.facts import facts_of; facts_of(1.5); facts_of([1]); facts_of(sys);"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
