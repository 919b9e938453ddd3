# sys.stdout may be None, as under pythonw.
import sys

print("begins")
sys.stdout = None
print("nowhere")
