"""Stopping at `breakpoint()`: a pdb in a rank's thread, whose keyboard is somewhere else."""
