# A program that the program starts has its Python, its environment and its import paths.
# env: MINE=1
import json
import os
import subprocess
import sys

ask = "import json, os, sys; print(json.dumps([sys.executable, os.environ['MINE'], sys.flags.utf8_mode, sys.path[1:]]))"
child = json.loads(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout)
print(child[0] == sys.executable, child[1], child[2] == sys.flags.utf8_mode)
print(sorted(set(child[3]) - set(sys.path)))
