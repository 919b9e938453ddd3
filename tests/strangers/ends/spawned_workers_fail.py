# A worker process fails: the error that its starter gets, and its exit code.
import multiprocessing
import sys


def work(number):
    if number == 1:
        sys.exit(7)
    return number


if __name__ == "__main__":
    processes = [multiprocessing.get_context("spawn").Process(target=work, args=(number,)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
    sys.exit(max(process.exitcode for process in processes))
