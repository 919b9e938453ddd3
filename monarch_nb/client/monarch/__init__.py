"""Monarch's own engine on the nodes of a reservation, and this process as its client.

workers  the mesh whose ranks run the worker loops: found or started, and how long they stay; `Reservation.monarch`
engine   Monarch in this process: attached to the workers, with calls that are made in the name of a cell

Nothing here imports Monarch before `Reservation.monarch` is called.
"""
