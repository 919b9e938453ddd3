"""Curves in the output of a cell: live while the run goes on, and kept as a picture. What is drawn, and how, is in
client/curves.

widget  where somebody sees it live: zoom, and the value under the mouse
showing puts all that into a cell
"""
