# A spawned process is given a function and objects of the program's own (pytorch's mnist_hogwild).
# ways: script live
import multiprocessing as mp
from dataclasses import dataclass


@dataclass
class Sample:
    index: int


def square(sample, answers):
    answers.put((sample.index**2, __name__))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=square, args=(Sample(3), answers))
    process.start()
    print(answers.get())
    process.join()
