# A pool of spawned processes finds the functions and classes of the program (spack 34105, napari 8936).
import multiprocessing as mp
from dataclasses import dataclass


@dataclass
class Sample:
    index: int


def square(sample):
    return sample.index**2, mp.parent_process() is not None, __name__


if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, map(Sample, range(4))))
