"""`%mesh diff`: which ranks have other values than the rest.

comparison  which parts of a value are equal on which ranks. Pure
report      what is said of it
groups      which ranks are compared with each other. Pure
asking      how ranks answer: idle ones in a run, stopped ones through their debuggers
differing   the questions, in order; what only ranks that differ are asked
compares    `Mesh.diff`
"""
