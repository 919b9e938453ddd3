"""The table of stopped ranks, and answers of many ranks."""

from __future__ import annotations

from monarch_nb.client.debug.stops import HEADERS, StopInfo, folded, stops_table


def stop(rank: int, line_number: int = 61) -> StopInfo:
    at = {"host": rank // 2, "gpu": rank % 2}
    return StopInfo(1, "debugee", rank, at, "localhost", "dbgex.to_debug", "dbgex.py", line_number, "", "run")


def test_the_table_looks_as_monarchs() -> None:
    assert stops_table([stop(0), stop(3, 7)]) == (
        "+------------+------+-----------------------+-----------+----------------+----------+\n"
        "| Actor Name | Rank | Coords                | Hostname  | Function       | Line No. |\n"
        "+============+======+=======================+===========+================+==========+\n"
        "| debugee    |    0 | {'host': 0, 'gpu': 0} | localhost | dbgex.to_debug |       61 |\n"
        "+------------+------+-----------------------+-----------+----------------+----------+\n"
        "| debugee    |    3 | {'host': 1, 'gpu': 1} | localhost | dbgex.to_debug |        7 |\n"
        "+------------+------+-----------------------+-----------+----------------+----------+"
    )


def test_an_empty_table_has_its_headers() -> None:
    lines = stops_table([]).splitlines()
    assert len(lines) == 4
    assert [cell.strip() for cell in lines[1].strip("|").split("|")] == list(HEADERS)


def test_equal_answers_once() -> None:
    answers = {0: "1\n", 3: "1\n", 1: "2\n", 2: "> f()\n-> x\n", 4: ""}
    assert folded(answers) == "[0,3] 1\n[1] 2\n[2]\n> f()\n-> x\n[4]"
