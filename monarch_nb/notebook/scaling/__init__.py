"""How a cell scales, in the notebook.

view   the rows as a table that grows, the curve below it, and what the present run prints
curve  the rows as a picture, and as bars of text. Pure
"""
