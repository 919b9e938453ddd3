# logging writes what it holds back when the program fails.
import logging
import logging.handlers

handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler("train.log"))
logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(levelname)s %(message)s")
logging.info("step 1")
raise ValueError("bad batch")
