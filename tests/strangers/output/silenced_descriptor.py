# Output is turned off, or into a file, below Python, and back (prophet 223, llama-cpp-python 2181).
# ways: script live cell
import os
import sys
import tempfile

print("before")
sys.stdout.flush()
saved = os.dup(1), os.dup(2)
with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), 1)
    os.dup2(1, 2)
    print("to the file")
    print("errors, too", file=sys.stderr)
    os.system("echo of a child")
    sys.stdout.flush()
    os.dup2(saved[0], 1), os.dup2(saved[1], 2)
    file.seek(0)
    print("got", file.read())
print("shown", file=sys.stderr)
os.system("echo of a child, shown")
