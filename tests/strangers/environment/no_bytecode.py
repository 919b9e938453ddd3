# Modules of the program leave no __pycache__.
# env: PYTHONDONTWRITEBYTECODE=1
import os
import sys

with open("a_module.py", "w") as file:
    file.write("x = 1\n")
sys.path.insert(0, os.getcwd())
import a_module

print(a_module.x, os.path.exists("__pycache__"), sys.dont_write_bytecode)
