"""Memory of one process that others read and write: `monarch.rdma` on our ranks.

    from monarch_nb.rdma import RDMABuffer

A buffer says where bytes are, and travels in messages. Who has it reads and writes them, while its owner goes on with
its work. They go by mail, as large content. All is in `buffer`.
"""

from monarch_nb.rdma.buffer import (
    RDMAAction,
    RDMABuffer,
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

__all__ = [
    "RDMAAction",
    "RDMABuffer",
    "RDMAReadTransferWarning",
    "RDMATcpFallbackWarning",
    "RDMAWriteTransferWarning",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]
