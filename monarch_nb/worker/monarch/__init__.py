"""Monarch's own engine on a node: its worker loop, and the processes that it starts.

loop     the loop, in the one rank that a node has of the mesh `monarch`
process  what such a process runs: Monarch's own bootstrap, with output of ours
census   what such a process holds and executes: it tells whoever asks

Nothing here imports Monarch before a client has asked for it.
"""
