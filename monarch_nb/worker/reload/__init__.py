"""Modules of the user's whose files changed are executed again before a run.

changed_modules  which they are, and where ranks import from
live_update      a module's new code in the module that lives: classes and functions stay the objects that they are
"""
