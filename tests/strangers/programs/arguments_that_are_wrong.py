# A program whose arguments are wrong says so and ends with 2.
# args: --lr abc
import argparse

parser = argparse.ArgumentParser(prog="train")
parser.add_argument("--lr", type=float)
print(parser.parse_args().lr)
