"""What ranks print: they write it to files, and here it is found, searched, and dropped when it is too much.

stored         the files of a rank's output; those of the oldest runs go
output         what one rank wrote in one run, read in the order in which it was written
written        what all ranks wrote in all runs
watch          tells when there is more in a directory
index          which line is where
helper         a process beside the allocator that answers requests and can be killed
search         lines that match, looked for in such a process
search_worker  that process
metrics        numbers that lines have beside names, read in such a process
metrics_worker that process
limit          drops the oldest when there is too much
kept           the output of meshes that have ended
"""
