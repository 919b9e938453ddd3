# Spawned processes find the program although its directory was left meanwhile (Nuitka 2141).
import multiprocessing as mp
import os


def name(number):
    return f"{number} of {os.path.basename(__file__)}"


if __name__ == "__main__":
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.map(name, range(3)))
    os.chdir("..")
    os.rmdir("elsewhere")
