"""Saves that ranks make by themselves, between two steps of a training, the same on all.

steps      what counts as a step, and noticing it
agreement  how ranks find the step at whose end all save
keeper     a rank's part: the thread that talks to the other ranks, and the main thread, which holds
reached    what is saved beside the names of cells: of functions that train
armed      what these have of the rest of a rank: the store, the objects, the save itself
"""
