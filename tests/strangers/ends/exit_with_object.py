# Any object for sys.exit is printed.
import sys

sys.exit(("no", "data"))
