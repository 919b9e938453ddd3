# Without a hook Python shows the error anyhow.
import sys

del sys.excepthook
raise ValueError("bad batch")
