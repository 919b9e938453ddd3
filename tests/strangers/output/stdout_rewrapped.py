# sys.stdout is wrapped in ways that old recipes for encodings have; nobody flushes what is printed last.
# ways: script live cell
import codecs
import io
import os
import sys

first = sys.stdout
wrapper = sys.stdout = io.TextIOWrapper(first.buffer, encoding="utf-8", errors="replace", write_through=first.write_through)
print("wrapped café", first.write_through)
sys.stdout = codecs.getwriter("utf-8")(first.buffer)
print("written by a codec ✓")
sys.stdout.flush()
sys.stdout = os.fdopen(os.dup(1), "w")
print("a file of descriptor 1")
