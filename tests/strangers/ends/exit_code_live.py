# The exit code of a script in live ranks is what its starter sees, too.
# ways: script live
import sys

print("computed")
sys.exit(3)
