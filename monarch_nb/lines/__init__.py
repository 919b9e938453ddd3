"""What can be said of a line that a rank printed, whoever printed it: pure, standard library only.

named      numbers with names beside them, as in `loss: 7.80102`
extraction the same from many lines at once: lines of one shape are taken apart once
thinning   many points of many ranks become few, and no extreme is lost
units      which of them say the same in other sizes
pictures   what is drawn of one name's numbers
choosing   which names are meant, and which are nearest to one that is not there
"""
