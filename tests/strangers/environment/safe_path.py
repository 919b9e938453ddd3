# PYTHONSAFEPATH keeps the script's directory from sys.path, and is a flag that processes of its own inherit.
# env: PYTHONSAFEPATH=1
import os
import subprocess
import sys

print(sys.flags.safe_path, os.path.dirname(os.path.abspath(__file__)) in sys.path)
print(subprocess._args_from_interpreter_flags())
