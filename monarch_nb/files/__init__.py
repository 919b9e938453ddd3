"""What a synced tree of files is: entries, changes, content. Pure; clients and allocators agree on it.

chunks  content: cut, hashed, packed
tree    entries by path, checked before use, and the difference between two trees
"""
