"""What ranks hold under names goes to disk, and comes back: `%mesh save`, `%mesh load`.

`torch.distributed.checkpoint` (DCP) plans, writes and reads. So what a save has is an ordinary checkpoint of its own.
Ranks talk over the mesh's store meanwhile: no process group of the training is used, or needed.

asked        what is asked for, and what is reported: plain data that JSON can hold; how far a load has come
exchange     what ranks of a save tell each other, with an end to every wait
manifest     the directories of saves, and the file in each that says what is in it, with the size of each file
collecting   what a value is saved as, or why it is not; what is kept of a namespace, or of an actor
leaves       a state taken apart into what DCP stores under keys, and put together again
dcp          DCP's planners, told what is equal on all ranks, and its files: private, counted
writing      a save, on each of its ranks
reading      a load, on each of its ranks
entry        what the client has ranks call
"""
