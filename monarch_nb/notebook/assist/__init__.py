"""What Tab and Shift+Tab show in the notebook.

completion  Tab: subcommands and flags in the line of a magic, a rank's live names in code for ranks
inspection  Shift+Tab: what a rank knows of such a name
"""
