"""What the ranks of a mesh printed: windows over their lines, as the log viewer shows it, and curves.

log      the logs that are open; each has rows that are numbered, filtered, searched and followed
folding  lines fold: those of several ranks that may share a row are one
reading  what rows say: lines are read from the nodes that answer, and those of several ranks become one
curves   curves of the numbers in it
"""
