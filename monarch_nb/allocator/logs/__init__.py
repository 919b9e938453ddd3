"""What ranks print: they write it to files, and here it is found, searched, and dropped when it is too much.

output         the files of one rank in one run, read in the order in which they were written
watch          tells when there is more in a directory
index          which line is where
search         lines that match, looked for in a process that can be killed
search_worker  that process
limit          drops the oldest when there is too much
"""
