"""What a rank's shell shows, without a rank."""

from __future__ import annotations

from monarch_nb.worker.shell.shell import clean_data


def test_binary_data_of_displays_is_base64() -> None:
    assert clean_data({"image/png": b"\x89PNG", "text/plain": "x"}) == {"image/png": "iVBORw==", "text/plain": "x"}
