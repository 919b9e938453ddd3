# Ctrl-C while workers load: the program saves and ends well (pytorch 22924).
# press: batch 1
# ways: script live cell
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.tensor([index])


step = 0
try:
    for step, batch in enumerate(DataLoader(Slow(), num_workers=2)):
        print("batch", 1, flush=True) if step == 1 else None
except KeyboardInterrupt:
    with open("saved.txt", "w") as file:
        file.write("saved")
    print("saved", step >= 1)
