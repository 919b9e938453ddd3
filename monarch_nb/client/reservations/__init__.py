"""What a user holds: taken, found again, attached to, released.

lists        what is held, in one pool or in all, and what was
finding      which one is meant, and where it is when it is in another pool
reservation  `reserve` and `attach`; a Reservation with its mesh and files
mmt          machines of Lightning AI, in the form of its MMT
placing      where its nodes have its files
elastic      the nodes of a Reservation: replaced, more, fewer
replacing    puts free nodes in the places of some
growing      lets it have more nodes, or fewer
changing     lets it have other nodes, all or nothing
without      how it goes on without some nodes, as people type it
further      more nodes of an engine, for one that has some of it
arguments    what `reserve` is given, checked
jobs         nodes that come as a job of an engine, for a reservation
extending    adds to the time limit
taking       what is held under the name already, or is free
waiting      reserves what others hold, when it is free
unattached   released although nobody can attach to it
sharing      who else may see it, or run cells on it
attachment   while it is used from here: nothing is idle, and the first node says how much time is left
memory       which reservation each notebook held last, for its next kernel
"""
