"""What a synced tree of files is: entries, changes, content. Pure; clients and allocators agree on it."""
