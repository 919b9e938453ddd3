"""A tree of allocators: whoever has nodes below it keeps sessions with some, and each of these passes on.

A client and an allocator use the same: the client has one branch, that of the first node; an allocator some more.

layout    which nodes are below which
passed    runs that were passed on: what to send again, and to whom
branches  the sessions with those directly below, and the adoption of those whose node is lost
folding   what several ranks say alike becomes one message, and a flood its count
alike     lines that differ only in numbers become one message, with the numbers of each rank
counting  how much ranks of a flood wrote, by rank
"""
