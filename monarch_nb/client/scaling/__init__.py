"""One cell on more and more ranks: how long it takes, and what that says.

named   numbers that lines of output name
report  rows and what is computed from them: throughput, efficiency, cost. Pure
series  runs the cell size after size, and makes the rows
"""
