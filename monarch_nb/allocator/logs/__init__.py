"""What ranks print: they write it to files, and here it is found, searched, and dropped when it is too much.

archive        old outputs of a mesh, put together in one database
stored         the bytes of a rank's output, wherever they lie
output         what one rank wrote in one run, read in the order in which it was written
written        what all ranks wrote in all runs
archiving      puts old outputs into the archive
watch          tells when there is more in a directory
index          which line is where
search         lines that match, looked for in a process that can be killed
search_worker  that process
limit          drops the oldest when there is too much
"""
