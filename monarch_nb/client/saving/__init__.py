"""What ranks hold goes to disk and comes back, as the client asks for it.

places   which directory of the ranks is meant, and whether it outlives the reservation
asking   one question to all ranks of a mesh, and what came of it
bringing nodes have no common storage: their parts come here, and go back
saves    what a mesh does: save, load, and tell which saves there are
autosaves  the same, for saves that its ranks make by themselves
before_release  what they hold is saved before they are released
"""
