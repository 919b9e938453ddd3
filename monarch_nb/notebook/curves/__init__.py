"""Curves of the numbers that ranks print, in the output of a cell: live while the run goes on, and kept as a picture.

words   what stands there as text: the last values, and which names there are
svg     the picture of it, for saved notebooks: small, light and dark
live    reads on while the run goes on, and has it drawn anew, a few times a second at most
widget  where somebody sees it live: zoom, and the value under the mouse
showing puts all that into a cell
"""
