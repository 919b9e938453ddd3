# Ctrl-C at a pool of processes that ignore it, as many programs set them up.
# press: ready
# ways: script live cell
import multiprocessing as mp
import signal
import time


def ignore(started):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started.wait()


if __name__ == "__main__":
    context = mp.get_context("fork")
    started = context.Barrier(3)
    pool = context.Pool(2, ignore, [started])
    started.wait()  # before that a press is for a process that has yet to ignore it
    pool.map(abs, range(4))
    result = pool.map_async(time.sleep, [1000, 1000])  # a press in here can leave the pool's locks held, in Python too
    try:
        print("ready", flush=True)
        result.get()
    except KeyboardInterrupt:
        pool.terminate()
        pool.join()
        print("terminated")
