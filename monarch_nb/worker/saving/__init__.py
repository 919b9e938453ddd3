"""What ranks hold under names goes to disk, and comes back: `%mesh save`, `%mesh load`.

`torch.distributed.checkpoint` (DCP) plans, writes and reads. So what a save has is an ordinary checkpoint of its own.
Ranks talk over the mesh's store meanwhile: no process group of the training is used, or needed.

asked        what is asked for, and what is reported: plain data that JSON can hold
exchange     what ranks of a save tell each other, with an end to every wait
places       the directories of saves: a hidden one is renamed when it is whole
manifest     the file that says what is in a save, with a checksum for each file
kinds        what a value is: saved as a state, a tensor, a plain value, a random state; or not, and why
collecting   what is kept of a namespace, or of an actor
leaves       a state taken apart into what DCP stores under keys, and put together again
planning     DCP's planners, told what is equal on all ranks
storage      files on disk as they are written: private, counted, with a checksum
writing      a save, on each of its ranks
reading      a load, on each of its ranks
changing     how far a load has come, which is said when it stops in the middle
entry        what the client has ranks call
"""
