"""Lines that ranks print: what they have in common, and how they differ. Pure, and standard library only.

templates  the text between the numbers of a line, by which lines are alike
spreads    alike lines of several ranks become one, and ranks that are far apart stay by themselves
texts      the same for texts of several lines, such as tracebacks
"""
