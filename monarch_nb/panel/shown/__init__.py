"""What nodes said becomes the one value that is shown. Nothing here asks a node.

view     what nodes said becomes the one value that is shown, with what can not be done as things are
ranks    ranks, their runs and actors, who waits in vain, and where time goes, in that value
changes  the value as browsers are told it; deaths and ends that people should hear of
"""
