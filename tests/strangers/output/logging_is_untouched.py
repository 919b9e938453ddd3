# logging.basicConfig works: nobody has given the root logger a handler before.
# ways: script live cell
import logging

root = logging.getLogger()
print(root.handlers, root.level, root.filters, logging.raiseExceptions, logging.Logger.manager.disable)
logging.warning("before")
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(threadName)s %(processName)s %(message)s", force=True)
logging.debug("after")
logging.getLogger("train").info("of a child")
root.removeHandler(root.handlers[0])
root.setLevel(logging.WARNING)
