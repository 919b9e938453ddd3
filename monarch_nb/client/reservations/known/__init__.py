"""Which reservations there are: listed, found by name, remembered.

lists    what is held, in one pool or in all, and what was
finding  which one is meant, and where it is when it is in another pool
memory   which reservation each notebook held last, for its next kernel
"""
