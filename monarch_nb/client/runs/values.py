"""What the ranks of a run returned: packed as it came, unpickled once somebody wants it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monarch_nb.errors import PickleError
from monarch_nb.ground.frames import unpack_pickle
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2


class RunValues:
    """The last expression's value of each rank that has finished."""

    def __init__(self) -> None:
        self._packed: dict[int, run_pb2.RankResult] = {}
        self._values: dict[int, Any] = {}

    def add(self, packed: run_pb2.RankResult) -> None:
        """A rank has finished."""
        self._packed[packed.rank] = packed

    def to_fetch(self) -> list[run_pb2.RankResult]:
        """Return the results whose value is still a blob on its rank's node."""
        return [packed for packed in self._packed.values() if packed.WhichOneof("value") == "value_blob"]

    def all(self, ranks: Iterable[int]) -> list[Any]:
        """Return the values of `ranks`; None where there is none.

        Raises:
            PickleError: a value could not be pickled on its rank, or not unpickled here.
        """
        errors: dict[str, list[int]] = {}
        for rank, packed in list(self._packed.items()):  # more may come meanwhile, on the background loop
            if packed.WhichOneof("value") == "value_error":
                errors.setdefault(packed.value_error, []).append(rank)
        if errors:
            text = "; ".join(f"{name_ranks(ranks)}: {error}" for error, ranks in errors.items())
            raise PickleError(text, next(iter(errors)), [rank for ranks in errors.values() for rank in ranks])
        return [self.of(rank) for rank in ranks]

    def kept(self, ranks: Iterable[int]) -> list[Any]:
        """As `all`, with a PickleError in place of each value that could not be brought here."""
        return [self._value_or_error(rank) for rank in ranks]

    def _value_or_error(self, rank: int) -> Any:
        try:
            return self.of(rank)
        except PickleError as error:
            return error

    def of(self, rank: int) -> Any:
        """Return one rank's value.

        Raises:
            PickleError: as `all`.
        """
        packed = self._packed.get(rank)
        if packed is not None and packed.WhichOneof("value") == "value_error":
            raise PickleError(packed.value_error, packed.value_error, [rank])
        if rank not in self._values and packed is not None and packed.WhichOneof("value") == "value_inline":
            try:
                self._values[rank] = unpack_pickle(bytearray(packed.value_inline))
            except Exception as error:
                raise PickleError(
                    f"the value of rank {rank} can not be unpickled here: {type(error).__name__}: {error}; bring plain "
                    "data instead, such as a state_dict()",
                    ranks=[rank],
                ) from error
            packed.ClearField("value")
        return self._values.get(rank)
