"""What a rank does for libraries that are used in it. None of them is imported before the user imports it."""
