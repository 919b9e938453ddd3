# sys.excepthook is None: Python says both errors.
import sys

sys.excepthook = None
raise ValueError("bad batch")
