"""Generate the Python stubs of protos/ into monarch_nb/proto, or check that they are up to date (`--check`)."""

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted((ROOT / "protos").rglob("*.proto"))
STUBS = ROOT / "monarch_nb" / "proto"
WITH_SERVICE = "allocator"
NEWEST_PYTHON = (3, 13)
"""The newest that the pinned grpcio-tools has a wheel for."""


def generate(directory: Path) -> Path:
    """Generate below `directory`; return the folder that holds the stubs."""
    plugins = Path(sys.executable).parent  # not resolved: a virtual environment's own scripts
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'protos'}"]
    command += [f"--plugin=protoc-gen-{name}={plugins / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    command += [f"--{kind}_out={directory}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    command += ["--mypy_opt=quiet", "--mypy_grpc_opt=quiet"]
    subprocess.run([*command, *map(str, PROTOS)], check=True)
    stubs = directory / "monarch_nb" / "proto"
    for path in stubs.glob("*_pb2_grpc.py*"):
        if not path.name.startswith(f"{WITH_SERVICE}_"):
            path.unlink()
    return stubs


def main() -> int:
    if sys.version_info[:2] > NEWEST_PYTHON:
        print(
            f"not for Python {sys.version_info[0]}.{sys.version_info[1]}: an older one generates and checks the stubs"
        )
        return 0 if "--check" in sys.argv[1:] else 1
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        names = {path.name for path in (*fresh.iterdir(), *STUBS.glob("*_pb2*.py*"))}
        different = sorted(set(filecmp.cmpfiles(fresh, STUBS, names, shallow=False)[1]) | _unpaired(fresh, names))
        if not different:
            print(f"the stubs of {len(PROTOS)} protos are up to date")
            return 0
        if "--check" in sys.argv[1:]:
            print(f"out of date: {', '.join(different)}; run make proto", file=sys.stderr)
            return 1
        for name in different:
            target = STUBS / name
            if (fresh / name).exists():
                target.write_bytes((fresh / name).read_bytes())
            else:
                target.unlink()
            print(f"wrote {target.relative_to(ROOT)}" if target.exists() else f"removed {target.relative_to(ROOT)}")
    return 0


def _unpaired(fresh: Path, names: set[str]) -> set[str]:
    return {name for name in names if not ((fresh / name).exists() and (STUBS / name).exists())}


if __name__ == "__main__":
    sys.exit(main())
