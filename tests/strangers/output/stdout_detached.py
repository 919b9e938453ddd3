# The encoding is changed by detaching the buffer, and what is printed last is flushed by nobody.
# ways: script live cell
import io
import sys

sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8", newline="\n")
print("held back")
print("at the end", end="")
