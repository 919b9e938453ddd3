"""Lines that ranks print: what they have in common, how they differ, and the numbers in them. Pure, and standard
library only.

templates  the text between the numbers of a line, by which lines are alike
outliers   which numbers are far from all others
packing    alike lines of several ranks on their way: one text, and the numbers of each
spreads    alike lines of several ranks become one, and numbers that are far apart stand behind it
logged     the same for lines as logs hold them
named      numbers with names beside them, as in `loss: 7.80102`
extraction the same from many lines at once: lines of one shape are taken apart once
laps       steps that begin anew each epoch are counted on
thinning   many points of many ranks become few, and no extreme is lost
pictures   what is drawn of one name's numbers
"""
