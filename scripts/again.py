"""Run pytest; what failed runs once more, alone: `python scripts/again.py -n 3 tests/integration`.

A test that passes then is printed ("passed only alone: …") and added to build/flaky.txt with what it said first. A name
that comes twice has a cause, which is to be mended. Red is what fails twice, more than four failures, which are no
accident, and what a process has left behind at its end: pytest says that of the last test, whoever it was. A test that
failed half-way may leave things: its own failure is what counts then.
"""

import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import datetime
from pathlib import Path

MOST_AGAIN = 4
FLAKY = Path("build/flaky.txt")
PYTEST = (sys.executable, "-m", "pytest")


def main(arguments: list[str]) -> int:
    """Return pytest's exit status, 0 where every failed test has passed alone."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        own = ("-o", f"cache_dir={directory}", f"--junit-xml={report}", "--maxfail=0")
        status = subprocess.run([*PYTEST, *arguments, *own], check=False).returncode
        failed_file = Path(directory, "v/cache/lastfailed")
        failed = sorted(json.loads(failed_file.read_text())) if status == 1 and failed_file.exists() else []
        said = _said(report) if failed else {}
    if not failed:
        return status
    if left := [each for each in failed if said.get(_key(each), "").startswith("failed on teardown")]:
        return _red(f"What is left behind fails only where the tests before it ran: {', '.join(left)}")
    if len(failed) > MOST_AGAIN:
        return _red(f"{len(failed)} failures, more than {MOST_AGAIN}, are no accident")
    return max(_alone(each, said.get(_key(each), "")) for each in failed)


def _alone(test: str, said: str) -> int:
    print(f"\n==> Once more, alone: {test}", flush=True)
    if status := subprocess.run([*PYTEST, "-q", "--no-header", test], check=False).returncode:
        return status
    FLAKY.parent.mkdir(exist_ok=True)
    with FLAKY.open("a") as flaky:
        flaky.write(f"{datetime.now():%F %R} {test}: {said}\n")
    times = sum(f" {test}: " in line for line in FLAKY.read_text().splitlines())
    print(f"passed only alone: {test} ({FLAKY} names it {times}×)", flush=True)
    return 0


def _red(why: str) -> int:
    print(f"\n==> Not run again. {why}", flush=True)
    return 1


def _said(report: Path) -> dict[tuple[str, str], str]:
    """Return the first line of what each failed test said first, by what JUnit calls it."""
    said: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        for problem in (*case.iterfind("failure"), *case.iterfind("error")):
            name = case.get("classname", ""), case.get("name", "")
            said.setdefault(name, problem.get("message", "").partition("\n")[0])
    return said


def _key(test: str) -> tuple[str, str]:
    """Return what JUnit calls a test."""
    path, *parameters = re.split(r"(?=\[)", test, maxsplit=1)
    *places, name = path.removesuffix(".py").replace(".py::", "::").replace("/", ".").split("::")
    return ".".join(places), "".join([name, *parameters])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
