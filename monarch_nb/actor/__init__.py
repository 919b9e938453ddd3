"""Actors on the ranks of meshes, with Monarch's public API: code written for `monarch.actor` runs when its import is
`monarch_nb.actor`.

Importing this imports neither torch nor grpc nor IPython.
"""
