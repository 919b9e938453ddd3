"""Reservations, meshes and the pool in the output of a cell, live or as they were.

showing  which form is shown: one widget for each thing, or text
widget   the live panel (anywidget); its requests and events, of each pool, between the browser and monarch_nb.panel
"""
