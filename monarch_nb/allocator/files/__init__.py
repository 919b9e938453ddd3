"""Files for ranks that do not see the notebook's: received, passed on, kept, removed.

relay        passes changes and content on to other nodes
node_files   takes in what comes, reads files for clients, and finds out whether a node sees a client's files itself
workspaces   the copies that ranks work in: one directory for each reservation, brought forward by changes
mounts       what one tree of it is to hold, also on disk, for the allocator after this one
pending      a change on its way, and its content, beside the tree
placing      how it meets what ranks have changed, and puts it in place name by name
directories  names below a directory, reached without following a link; and what takes them away
"""
