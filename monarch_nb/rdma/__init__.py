"""Memory of one process that others read and write: `monarch.rdma` on our ranks.

    from monarch_nb.rdma import RDMABuffer

A buffer says where bytes are, and travels in messages. Who has it copies them, while its owner goes on with its work.
On one node the kernel copies from process to process. Between nodes they go by mail, as large content.

memory    bytes of this process: those of a tensor, or of a memoryview
kernel    copies from another process of this node
kept      the buffers that this process owns, and what others ask of it
transfer  one read or write, from its sending until the bytes are there
buffer    what users write
backend   what Monarch has beside
"""

from monarch_nb.rdma.backend import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch_nb.rdma.buffer import RDMAAction, RDMABuffer

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
