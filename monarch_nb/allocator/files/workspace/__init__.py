"""The copies of trees that ranks work in: changes are staged, journalled and put in place at once.

workspaces   one directory for each reservation, brought forward by changes
mounts       what one tree of it is to hold
pending      a change on its way, staged beside the workspace
content      what of it the node has already
plan         how it meets what ranks have changed
burst        puts it in place, or nothing of it
journal      what happened, for the allocator after this one
directories  names below a directory, reached without following a link
"""
