"""Monarch's own engine on the nodes of a reservation, and this process as its client.

waits    what a cell that waits for long is told
sources  what code of a cell is called
workers  the mesh whose ranks run the worker loops: found or started, and how long they stay
engine   Monarch in this process: attached to the workers, with calls that are made in the name of a cell
faults   failures that nobody waits for: of many that are alike, one is shown
hosts    `Reservation.monarch`

Nothing here imports Monarch before `Reservation.monarch` is called.
"""
