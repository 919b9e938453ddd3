"""What Monarch's module says of the hardware: here there is none."""

from __future__ import annotations

import warnings


class RDMAReadTransferWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


class RDMAWriteTransferWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


class RDMATcpFallbackWarning(Warning):
    """Monarch's. Nothing here issues it; your filters may name it."""


def get_rdma_backend() -> str:
    """Return "monarch_nb". In Monarch it is "ibverbs", "tcp" or "none".

    Example:
        >>> get_rdma_backend()
        'monarch_nb'
    """
    return "monarch_nb"


def is_ibverbs_available() -> bool:
    """Return False: no bytes go over ibverbs here. Buffers work without it.

    Example:
        >>> is_ibverbs_available()
        False
    """
    return False


def is_rdma_available() -> bool:
    """Like `is_ibverbs_available`. Monarch has deprecated this name.

    Example:
        >>> is_rdma_available()  # doctest: +SKIP
        False
    """
    warnings.warn("is_rdma_available is deprecated: use is_ibverbs_available()", DeprecationWarning, stacklevel=2)
    return is_ibverbs_available()
