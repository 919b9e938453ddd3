"""What the ranks of a mesh printed: windows over their lines, as the log viewer shows it, and curves.

opened     the logs that are open
log        one of them: rows that are numbered, filtered, searched and followed
folding    lines fold: those of several ranks that may share a row are one
reading    what rows say: lines are read from the nodes that answer, and those of several ranks become one
curves     curves of the numbers in it
own_lines  each rank's own line of a row that is in the output of a cell
"""
