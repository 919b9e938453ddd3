"""Curves of the numbers that ranks print: read while the run goes on, and drawn wherever somebody looks.

plot       what `mesh.plot()` returns: a picture as SVG, as characters, as text; notebooks show it live
drawing    reads on while the run goes on, about once a second
names      which numbers are meant by a name, and which are drawn when nobody says
svg        the picture for saved notebooks and files: small, light and dark
characters the picture for terminals
scales     from numbers to places in a picture
told       the picture as browsers take it
words      what stands there as text: the last values, and which names there are
"""
