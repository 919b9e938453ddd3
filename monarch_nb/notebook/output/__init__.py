"""What ranks print, display and return, folded by rank set and rendered; and `%mesh`'s own tables.

view        the output of one run: takes its events, publishes seldom and in time
displays    which cells show what ranks may update from later cells
publishing  where a view publishes outside of a cell, and who calls it later
resuming    output that is followed from the middle is brought into step
terminal    pieces of text become lines, as a terminal would show them
fold        lines fold: what several ranks print alike is one row
placing     which row of others' a rank's new row is equal to, and where it goes if to none
lanes       ranks that are at the same place go together
blocks      what a rank writes at once stays together where it does not fold
rows        what is shown once for a set of ranks
values      what many ranks return: numbers and tensors fold, and are drawn as a grid
render      rows become HTML and text of bounded size
html        HTML of what ranks print and display
logs        lines from the logs on disk, folded run after run
actors      the table of actors that `%mesh actors` shows
inside      where time and memory are: what instruments found
tables      calm lines, tables and stacks: what `%mesh` says itself
"""
