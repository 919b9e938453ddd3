"""Flame graphs of what ranks' main threads did in a run: `%%mesh --profile=python`.

trees       stacks and how long they were there; ranks that look the same are one. Pure
speedscope  the file that https://www.speedscope.app opens. Pure
svg         the picture in a cell. Pure
flames      `Mesh.flames_of`
"""
