"""Actors, as a notebook or a script calls them. Top to bottom:

runtime  what the engine of actors has around it in this process: meshes, where they are shown
calls    in whose name actors are called: a cell's, or the script's; what they print and ask there
behind   what a call that waits for long waits behind
"""
