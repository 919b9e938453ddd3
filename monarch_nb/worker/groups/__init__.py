"""torch.distributed in ranks that live long. A hung collective is broken by `breaking`.

store             the process that hosts a mesh's TCPStore
store_connection  connecting to it, interruptibly
mesh_store        where it listens, also after it has moved
rendezvous        ranks agree on a new group
forming           init_process_group() and its kin as ranks have them: they note what groups there are
breaking          a collective that hangs is freed from outside, and its groups are forgotten
connections       which connections belong to groups: what breaking shuts down
sockets           how they are found among all of the process, and shut down
freeing           when a group's memory may go
records           what torch's flight recorders know of calls: NCCL's return before they are over
collectives       what a stack waits for, and which errors a broken group causes
calls             which tensors and which group a collective was called with, and how many were before
c10d              all that depends on private names of torch's
"""
