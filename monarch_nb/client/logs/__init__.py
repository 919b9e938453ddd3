"""What ranks wrote, read from the files on their nodes.

records  everything, run after run, merged from all nodes, and what comes from now on; what a released mesh left
metrics  numbers that they printed beside names: curves of them, or all
lines    any line by its number, digests of lines, and searches, as the log panel needs them
"""
