# Ctrl-C at a pool of processes that ignore it, as many programs set them up.
# press: ready
# ways: script live cell
import multiprocessing as mp
import signal
import time


def ignore():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    pool = mp.get_context("fork").Pool(2, ignore)
    pool.map(abs, range(4))
    result = pool.map_async(time.sleep, [1000, 1000])  # a press in here can leave the pool's locks held, in Python too
    try:
        print("ready", flush=True)
        result.get()
    except KeyboardInterrupt:
        pool.terminate()
        pool.join()
        print("terminated")
