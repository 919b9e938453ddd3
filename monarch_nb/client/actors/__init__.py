"""Actors, as a notebook or a script calls them. Top to bottom:

runtime      what the engine of actors has around it in this process
holding      the reservations and meshes that this process uses
calls        in whose name actors are called: a cell's, or the script's
behind       what a call that waits for long waits behind
questions    what ranks ask of those who wait for calls
printing     what actors print, in a script
labelled     what Monarch's own actors print: lines of nodes, shown as lines of actors
"""
