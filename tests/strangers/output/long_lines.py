# Lines that no screen shows whole.
# ways: script live
import sys

print("x" * 50_000)
print("y" * 3_000, file=sys.stderr)
