# A number that no C integer holds.
import sys

sys.exit(2**70)
