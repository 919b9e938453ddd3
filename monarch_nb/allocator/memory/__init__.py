"""What an allocator writes down, and how the next one finds its ranks again when it was killed.

records   leases, meshes, processes and runs, written down as they change, and read again
database  where they are: one SQLite table, and two files of what is newer
"""
