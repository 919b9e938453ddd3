"""What an allocator writes down, and how the next one finds its ranks again when it was killed.

records        leases, meshes, processes and runs, written down as they change
run_numbers    the newest run's number of each mesh, written down before it is told
database       where they are: one SQLite table
accepted_runs  those that are not in it yet
read_state     fills the state of an allocator that starts again
adoption       connects to the ranks, templates and stores that still live
"""
