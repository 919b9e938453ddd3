"""Curves of the numbers that ranks print: read while the run goes on, and drawn wherever somebody looks.

words     what stands there as text: the last values, and which names there are
pictures  charts as SVG, or drawn with characters, and their scales. Pure
searching which of the newest runs have a name, where nobody says which is meant
plot      what `mesh.plot()` returns: the numbers of runs, read again and again while these go on
"""
