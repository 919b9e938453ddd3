"""What the client asks when it compares ranks. It asks first for one digest, and for more only where these differ.

The value of the expression is kept from the first question to `end`, because evaluating it again may give another one.
Answers are bytes: a cell's value, or text that a stopped rank's debugger prints.
"""

from __future__ import annotations

import base64
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch_nb.worker import digests
from monarch_nb.worker.comparing import surroundings
from monarch_nb.worker.comparing.dimensions import named_dimensions
from monarch_nb.worker.comparing.leaves import Leaves, whole_digest

PAGE_CHARACTERS = 150_000
"""A debugger's answer is read in pages: the conversation keeps 200,000 characters."""

History = tuple[int, str, dict[int, str]] | None
"""Of a parameter: the run that was recorded, its name there, and a digest after each step. None where there is none."""


class Looked(NamedTuple):
    """A tensor, as far as it is seen.

    Attributes:
        blocks: their digests. block_elements: how many elements one has.
        nan, inf: how many elements are not finite.
        history: what `--deterministic` has recorded of it.
    """

    blocks: list[bytes]
    block_elements: int
    shape: list[int]
    nan: int
    inf: int
    history: History


_compared = Leaves(None)
_printed = ""


def begin(value: Any) -> bytes:
    """Take a value in, and answer with the digest of the whole, and of how many parts it is."""
    global _compared
    _compared = Leaves(value)
    return _packed((whole_digest(_compared.all), len(_compared.all), _compared.left_out))


def begin_random_states() -> bytes:
    """Like `begin`, for the random states of this process."""
    return begin(surroundings.random_states())


def begin_environment(salt: str) -> bytes:
    """Like `begin`, for what is around this process: packages, variables, code, devices."""
    return begin(surroundings.environment(salt))


def dimensions(variables: Mapping[str, Any]) -> bytes:
    """Answer with the named dimensions of this rank's device meshes."""
    return _packed(named_dimensions(variables))


def leaves() -> bytes:
    """Answer with all parts."""
    return _packed([tuple(leaf) for leaf in _compared.all])


def look_at(paths: Sequence[str]) -> bytes:
    """Answer with what there is to see of tensors, by path."""
    found, contents = {}, {leaf.path: leaf.contents for leaf in _compared.all}
    for path in paths:
        tensor = _compared.tensor(path)
        if tensor is not None:
            found[path] = Looked(
                digests.block_digests(tensor),
                digests.elements_of_block(tensor),
                list(tensor.shape),
                int(tensor.isnan().sum()),
                int(tensor.isinf().sum()),
                _history(path, contents[path]),
            )
    return _packed(found)


def _history(path: str, contents: str) -> History:
    if (deterministic := sys.modules.get("monarch_nb.worker.instruments.deterministic")) is None:
        return None
    found: History = deterministic.history(path, contents)
    return found


def elements(wanted: Sequence[tuple[str, int]]) -> bytes:
    """Answer with the elements of blocks, as 64-bit numbers."""
    return _packed([_numbers(path, block) for path, block in wanted])


def end() -> bytes:
    """Forget the value."""
    begin(None)
    digests.forget()
    return _packed(None)


def printed(answer: bytes, page: int = 0) -> None:
    """Print a page of an answer, for who asks through a debugger; page 0 takes the answer in, later ones give none."""
    global _printed
    if page == 0:
        _printed = base64.b64encode(answer).decode()
    text = _printed[page * PAGE_CHARACTERS : (page + 1) * PAGE_CHARACTERS]
    is_last = (page + 1) * PAGE_CHARACTERS >= len(_printed)
    sys.stdout.write(f"<<{'last' if is_last else 'more'} {text}>>\n")
    if is_last:
        _printed = ""


def _numbers(path: str, block: int) -> tuple[str, bytes]:
    """Return the typecode of `array`, and the elements."""
    import torch

    tensor = _compared.tensor(path)
    assert tensor is not None, "who asks has seen its blocks"
    found = digests.block_of(tensor, block)
    if found.is_complex():
        found = torch.view_as_real(found).reshape(-1)
    is_whole = not found.is_floating_point()
    numbers = found.to("cpu", torch.int64 if is_whole else torch.float64).contiguous()
    return "q" if is_whole else "d", numbers.numpy().tobytes() if numbers.numel() else b""


def _packed(answer: Any) -> bytes:
    return zlib.compress(pickle.dumps(answer), 1)
