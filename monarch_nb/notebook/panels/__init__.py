"""Reservations, meshes and the pool in the output of a cell, live or as they were.

showing    which form is shown, and one widget for each thing
widget     the live panel (anywidget)
messages   its requests and events, of each pool, between the browser and monarch_nb.panel
summaries  what stands there without a widget: HTML and text
"""
