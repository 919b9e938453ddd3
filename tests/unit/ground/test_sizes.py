"""Amounts of data: what people write is read, what is written can be read by people."""

from __future__ import annotations

import pytest

from monarch_nb.errors import UsageError
from monarch_nb.sizes import binary_size, bytes_of, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20GB", 20 * 10**9), ("1.5 tb", 1_500_000_000_000), (" 300 kB ", 300_000), ("0", 0), ("7B", 7)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert bytes_of(text, "--log-limit") == expected


@pytest.mark.parametrize("text", ["", "20", "-1GB", "20GiB", "GB", "1e3MB", "٣GB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--log-limit is a size such as"):
        bytes_of(text, "--log-limit")


def test_sizes_are_told() -> None:
    told = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 9_960: "10 kB", 999_600: "1.0 MB", 12.3e9: "12 GB", 4e15: "4000 TB"}
    assert {count: size(count) for count in told} == told
    of_memory = {0: "0 B", 1023: "1.0 KiB", 1536: "1.5 KiB", 12 << 30: "12 GiB", 4000 << 40: "4000 TiB"}
    assert {count: binary_size(count) for count in of_memory} == of_memory, "as torch does"
