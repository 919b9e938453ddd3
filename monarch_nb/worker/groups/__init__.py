"""torch.distributed in ranks that live long. A hung collective is broken by `breaking`.

store        the process that hosts a mesh's TCPStore; where it listens, also after it has moved; connecting to it
rendezvous   ranks agree on a new group
forming      init_process_group() and its kin as ranks have them: they note what groups there are
breaking     a collective that hangs is freed from outside, and its groups are forgotten
connections  which connections belong to groups, found among all of the process: what breaking shuts down
calls        what a stack waits for, with which tensors and which group, and which errors a broken group causes
c10d         what torch.distributed has inside: its books, its flight recorders, when a group's memory may go
"""
