"""The project's files: what changed here goes to nodes, what ranks wrote comes back.

project      which directory is the project, and its settings
ignore       what in it is not synced
git_excludes what git ignores in all repositories of a user
watcher      which names changed since one asked last
scan         what is in a tree: all names, or those that changed
reading      what the files hold, cut and hashed
local_tree   the tree on this computer, of these four
evidence     which nodes see a directory, and which need a copy
record       what all kernels of a reservation agree on: directories that were added, reloading
sync         what changed goes to the nodes before each run
left_out     why a file is not on the nodes
transfer     a change on its way: sent to one node, passed on to the others
sync_report  what a sync did, or would do
fetch        the way back: files from a node
"""
