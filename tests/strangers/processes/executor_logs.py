# Long lines that processes of an executor log come whole (cpython 143900, multiprocessing-logging 44).
import logging
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor


def work(number):
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    logging.info("line %s %s", number, "x" * 3000)
    print("printed", number, flush=True)
    return number


if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as executor:
        print(sum(executor.map(work, range(5))))
