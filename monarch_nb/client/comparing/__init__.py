"""`%mesh diff`: which ranks have other values than the rest.

report     what differs, and what is said of it. Pure
differing  the questions, in order; what only ranks that differ are asked
compares   `Mesh.diff`, and which ranks are compared with each other
"""
