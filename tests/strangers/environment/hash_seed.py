# A sharding by hash() is the same on all ranks when PYTHONHASHSEED says so.
# procs: 2
# env: PYTHONHASHSEED=7
# ways: script live
import os

mine = [name for name in map("document-{}".format, range(20)) if hash(name) % 2 == int(os.environ["RANK"])]
print(mine)
