"""What nodes said becomes the one value that is shown. Nothing here asks a node.

view      what nodes said becomes the one value that is shown
ranks     ranks and their runs, in that value
actors    the actors of a reservation, in that value
hangs     ranks that wait for others that will not come
top       where ranks spend their time; asked for by itself
possible  what can not be done with a reservation as it is now, and why
changes   what of it browsers have to be told
notices   deaths and ends that people should hear of
"""
