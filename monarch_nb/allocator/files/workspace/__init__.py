"""The copies of trees that ranks work in: what changed comes beside them, and is put in place name by name.

workspaces   one directory for each reservation, brought forward by changes
mounts       what one tree of it is to hold
manifest     the same on disk, for the allocator after this one
pending      a change on its way
incoming     its content, beside the tree
plan         how it meets what ranks have changed
placing      puts it in place
directories  names below a directory, reached without following a link
"""
