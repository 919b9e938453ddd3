"""torch.distributed.checkpoint (DCP) as saves use it. Its planners are told what is equal on all ranks and what
differs: the plan is made without any process group. Its files are written private and counted, and read without
pickles that execute.
"""

from __future__ import annotations

import collections
import io
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem, WriteItemType

from monarch_nb.errors import SaveError

METADATA = ".metadata"
_SLICE_BYTES = 1 << 20


class _Stream(io.RawIOBase):
    """A file that is written from its beginning to its end.

    Args:
        written: called with what was written, slice after slice: an interrupt gets through between two.
    """

    def __init__(self, path: Path, written: Callable[[int], None]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._written = written
        self.size_bytes = 0
        self.failure: BaseException | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._write(memoryview(data).cast("B"))
        except BaseException as error:  # torch's C++ code, which calls this, raises something else in its place
            self.failure = self.failure or error
            raise

    def _write(self, whole: memoryview) -> int:
        for start in range(0, len(whole), _SLICE_BYTES):
            rest = whole[start : start + _SLICE_BYTES]
            while rest:
                done = os.write(self._descriptor, rest)
                self.size_bytes += done
                rest = rest[done:]
            self._written(self.size_bytes)
        return len(whole)

    def tell(self) -> int:
        return self.size_bytes

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class _Files(FileSystem):
    """DCP's file system, private, which counts."""

    def __init__(self, written: Callable[[int], None]) -> None:
        self._written = written
        self.files: dict[str, int] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as plain:
                yield plain
            return
        stream = _Stream(Path(path), self._written)
        try:
            yield stream
            if stream.failure is not None:
                raise stream.failure
            self.files[Path(path).name] = stream.size_bytes
        except RuntimeError:
            if stream.failure is None:
                raise
            raise stream.failure from None
        finally:
            stream.close()

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        if (size_bytes := self.files.pop(Path(path).name, None)) is not None:
            self.files[Path(new_path).name] = size_bytes


class Writer(FileSystemWriter):
    """Writes a rank's part of a save.

    Args:
        written: called now and then with the bytes written of a file.

    Attributes:
        files: the sizes of what was written, in bytes, by name.
    """

    def __init__(self, directory: Path, written: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(directory, sync_files=True)
        self.fs = self._files = _Files(written)

    @property
    def files(self) -> dict[str, int]:
        """The sizes of what was written, in bytes, by name."""
        return self._files.files

    def storage_meta(self) -> StorageMeta:
        """Without the path, which is that of the hidden directory."""
        return StorageMeta(save_id=self.save_id)


class Reader(FileSystemReader):
    """Reads a save; of its metadata, which is a pickle, only what DCP itself puts into it."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata.

        Raises:
            SaveError: it can not be read.
        """
        path = Path(self.path) / METADATA
        try:
            with open(path, "rb") as file:
                metadata: Metadata = _MetadataUnpickler(file).load()
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ValueError) as error:
            raise SaveError(f"{path} can not be read: {error}") from error
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Finds only the classes of which DCP's metadata is made."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _OF_DCP and isinstance(found := super().find_class(module, name), type):
            return found
        if (module, name) in _HARMLESS or (module == "torch" and isinstance(getattr(torch, name, None), _TYPES)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it wants {module}.{name}, which no metadata has")


_OF_DCP = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_TYPES = (torch.dtype, torch.layout, torch.memory_format)
_HARMLESS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    (collections.ChainMap.__module__, "ChainMap"),
    (pathlib.PosixPath.__module__, "PosixPath"),
    ("pathlib", "PosixPath"),
    ("builtins", "dict"),
}


class SavePlanner(DefaultSavePlanner):
    """Plans what is written of values that are taken apart already.

    Args:
        values: by key, a tensor or what is stored of a value.
        paths: from the root of the whole state to each, as DCP notes them.
    """

    def __init__(self, values: Mapping[str, Any], paths: Mapping[str, tuple[Any, ...]]) -> None:
        super().__init__()
        self.state_dict = dict(values)
        self.mappings = dict(paths)
        self.is_coordinator = True
        self._staged: dict[MetadataIndex, Any] = {}

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        """It is set up."""

    def stage(self, plan: SavePlan) -> None:
        """Copy all that this rank writes, in memory: what it is copied from may change from now on."""
        for item in plan.items:
            self._staged[item.index] = self._copied(super().resolve_data(item))
        self.state_dict.clear()

    def resolve_data(self, write_item: WriteItem) -> Any:
        staged = self._staged.pop(write_item.index, None)
        return super().resolve_data(write_item) if staged is None else staged

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 -- DCP's own name
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(object)
        return object

    @staticmethod
    def _copied(data: Any) -> Any:
        if isinstance(data, io.BytesIO):
            return data
        # Of a view, only what is seen of it.
        cpu = data.detach().cpu()
        return cpu.clone() if cpu.data_ptr() == data.data_ptr() else cpu


class LoadPlanner(DefaultLoadPlanner):
    """Reads into tensors, and hands over the pickles of what is none.

    Args:
        tensors: to read into, by key. objects: the keys of what is no tensor.
        loaded: called with the key and the pickle of each of these.
    """

    def __init__(
        self, tensors: Mapping[str, Any], objects: Mapping[str, Any], loaded: Callable[[str, bytes], None]
    ) -> None:
        super().__init__()
        self.state_dict = {**tensors, **objects}
        self._loaded = loaded

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        self.original_state_dict = self.state_dict
        self.flatten_state_dict = False
        return super().create_local_plan()

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self._loaded(read_item.dest_index.fqn, value.getvalue())
