# sys.exit in a finally block while another error is under way.
import sys

try:
    raise ValueError("bad batch")
finally:
    sys.exit(3)
