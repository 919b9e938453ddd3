"""What a user holds: taken, found again, attached to, released.

lists        what is held, in one pool or in all, and what was
finding      which one is meant, and where it is when it is in another pool
reservation  `reserve` and `attach`; a Reservation with its mesh and files
arguments    what `reserve` is given, checked
jobs         nodes that come as a job of an engine, for a reservation
extending    adds to the time limit
waiting      reserves what others hold, when it is free
sharing      who else may see it, or run cells on it
attachment   while it is used from here: nothing is idle, and the first node says how much time is left
memory       which reservation each notebook held last, for its next kernel
"""
