# Spawned processes answer with objects and errors of the program's own classes (cpython 132898).
# ways: script live
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass


@dataclass
class Answer:
    number: int


class Refused(Exception):
    pass


def ask(number):
    if number:
        raise Refused(number)
    return Answer(number)


if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as executor:
        answer = executor.submit(ask, 0).result()
        print(answer, type(answer) is Answer, repr(executor.submit(ask, 1).exception()))
