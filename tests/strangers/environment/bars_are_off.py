# What progress bars read of the environment when they are imported (tqdm 612, 1526).
# env: TQDM_DISABLE=1
# ways: script live
from tqdm import tqdm

print(sum(tqdm(range(3))), tqdm(total=1, mininterval=5).disable)
