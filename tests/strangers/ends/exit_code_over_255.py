# A batch script reads the status that a program ends with, of which the system keeps eight bits.
import sys

print("computed")
sys.exit(258)
