"""What a forked child is told of itself."""

from __future__ import annotations

import pytest

from monarch_nb.worker import become_rank


@pytest.mark.parametrize(
    ("visible", "local_rank", "device"),
    [
        ("", "0", "cpu"),
        (None, "1", "cpu"),
        ("-1", "0", "cpu"),
        ("3", "0", "cuda:0"),
        ("2,3", "1", "cuda:1"),
        ("5", "3", "cuda:0"),
    ],
)
def test_device_name(visible: str | None, local_rank: str, device: str) -> None:
    environment = {"LOCAL_RANK": local_rank} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert become_rank.device_name(environment) == device
