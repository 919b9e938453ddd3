"""The project's files: what changed here goes to nodes, what ranks wrote comes back.

project      which directory is the project, and its settings
ignore       what in it is not synced, as git says it too
watcher      which names changed since one asked last
scan         what is in a tree: all names, or those that changed; files are read
local_tree   the tree on this computer, of these four, and what of it is left out
evidence     which nodes see a directory, and which need a copy
record       what all kernels of a reservation agree on: directories that were added, reloading
sync         what changed goes to the nodes before each run
transfer     a change on its way: sent to one node, passed on to the others, and what is said of it
fetch        the way back: files from a node
"""
