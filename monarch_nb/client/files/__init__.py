"""The notebook's files as this computer has them: which belong to the project, what they hold, what changed."""
