"""Where ranks are, and who is waited for.

ranks      what one rank did in the last seconds, of what its node tells. Pure
straggler  which ranks the others wait for. Pure
table      the rows of all: ranks that are alike are one when there are many. Pure
asking     one look at a mesh: its ranks and its nodes are asked
tops       `Mesh.top`
terminal   text that takes the place of what was shown before
"""
