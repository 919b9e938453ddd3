"""What ranks print: they write it to files, and here it is found, searched, and dropped when it is too much.

stored   the files of a rank's output, and what of them is kept: of the newest runs, and when a mesh has ended
output   what one rank, or all, wrote, read in the order in which it was written; and when there is more
index    which line is where
helper   a process beside the allocator that answers requests and can be killed
search   lines that match, looked for in such a process
metrics  numbers that lines have beside names, read in such a process
limit    drops the oldest when there is too much
"""
