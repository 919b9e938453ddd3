"""What a user holds: taken, found again, attached to, released.

reservation  `reserve`, `attach` and lists; a Reservation with its mesh and files
attachment   while it is used from here: nothing is idle, and the first node says how much time is left
memory       which reservation each notebook held last, for its next kernel
"""
