"""What many ranks return: different numbers and tensors are one row, with a grid of hosts × ranks.

spread   numbers of ranks in a sentence, and which are far from the others
folding  which values fold, and what their rows say
results  they become HTML and text of bounded size
grid     the numbers as a grid that is coloured by value, and as a table
"""
