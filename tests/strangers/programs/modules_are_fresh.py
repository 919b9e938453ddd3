# Modules of the program are imported anew each time, with their state.
# ways: script live
import os
import sys

with open("counting.py", "w") as file:
    file.write("count = 0\ndef up():\n    global count\n    count += 1\n    return count\n")
sys.path.insert(0, os.getcwd())
import counting

print(counting.up(), counting.up(), counting.__file__ == os.path.join(os.getcwd(), "counting.py"))
