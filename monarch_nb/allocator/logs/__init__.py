"""What ranks print: they write it to files, and here it is found, searched, and dropped when it is too much.

archive        old outputs of a mesh, put together in one database
stored         the bytes of a rank's output, wherever they lie
output         what one rank wrote in one run, read in the order in which it was written
written        what all ranks wrote in all runs
archiving      puts old outputs into the archive
watch          tells when there is more in a directory
index          which line is where
helper         a process beside the allocator that answers requests and can be killed
search         lines that match, looked for in such a process
search_worker  that process
metrics        numbers that lines have beside names, read in such a process
metrics_worker that process
limit          drops the oldest when there is too much
"""
