"""Run pytest; what failed runs once more, alone: `python scripts/again.py -n 3 tests/integration`.

A test that passes then is printed ("passed only alone: …") and added to build/flaky.txt. What fails twice is red, and
so are more than four failures, which are no accident. A name that comes twice has a cause, which is to be mended.
"""

import json
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

MOST_AGAIN = 4
FLAKY = Path("build/flaky.txt")


def main(arguments: list[str]) -> int:
    """Return pytest's exit status, 0 where every failed test has passed alone."""
    pytest = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryDirectory() as cache:
        status = subprocess.run([*pytest, "-o", f"cache_dir={cache}", *arguments], check=False).returncode
        failed_file = Path(cache, "v/cache/lastfailed")
        failed = sorted(json.loads(failed_file.read_text())) if failed_file.exists() else []
    if status != 1 or not 0 < len(failed) <= MOST_AGAIN:
        return status
    print(f"\n==> Once more, alone: {', '.join(failed)}", flush=True)
    if status := subprocess.run([*pytest, *failed], check=False).returncode:
        return status
    FLAKY.parent.mkdir(exist_ok=True)
    with FLAKY.open("a") as flaky:
        flaky.writelines(f"{datetime.now():%F %R} {each}\n" for each in failed)
    print(f"passed only alone: {', '.join(failed)} (added to {FLAKY})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
