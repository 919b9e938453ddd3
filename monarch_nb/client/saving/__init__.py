"""What ranks hold goes to disk and comes back, as the client asks for it.

asking     one question to all ranks of a mesh, and what came of it; which directory is meant
saves      what a mesh does: save, load, and tell which saves there are, also those that are brought here
autosaves  the same, for saves that its ranks make by themselves, also before they are released
"""
