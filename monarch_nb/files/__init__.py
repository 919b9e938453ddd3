"""What a synced tree of files is: entries, changes, content. Pure; clients and allocators agree on it.

content  pieces of files: hashed, packed
pieces   a file is written of pieces, none of which is copied
tree     entries by path, checked before use, and the difference between two trees
"""
