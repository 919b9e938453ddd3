"""The copies of trees that a node's ranks work in: changes are staged, journalled and put in place at once."""
