"""What a tree says of what changed, as tests read it."""

from collections.abc import Callable
from pathlib import Path

from monarch_nb.client.files.local_tree import LocalTree, Refreshed
from monarch_nb.files.content import new_hash
from monarch_nb.files.tree import check_change
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry

Make = Callable[..., LocalTree]


def changed(refreshed: Refreshed) -> list[bytes]:
    check_change(TreeChange(changed=refreshed.changed, removed=refreshed.removed))
    return [entry.path for entry in refreshed.changed]


def holds(entry: TreeEntry, data: bytes) -> bool:
    return entry.hash == new_hash(data).digest() and entry.size_bytes == len(data)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
