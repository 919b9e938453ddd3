"""DCP's planners, told what is equal on all ranks and what differs: the plan is made without any process group."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, WriteItem, WriteItemType


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
