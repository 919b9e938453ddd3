"""Saves that ranks make by themselves, between two steps of a training, the same on all.

agreement  how ranks find the step at whose end all save
keeper     a rank's part: the thread that talks to the other ranks, and the main thread, which holds
armed      what these have of the rest of a rank: the store, the objects, also those of functions, the save itself
"""
