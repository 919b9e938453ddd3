# A program closes its standard output, as daemons do.
import sys

print("begins")
sys.stdout.close()
sys.stderr.write("goes on\n")
