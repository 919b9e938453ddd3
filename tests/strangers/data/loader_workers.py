# Workers of a DataLoader get the program's own dataset and functions (fastai 3665, pytorchvideo 21).
# ways: script live cell
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index**2


def collate(batch):
    return torch.tensor(batch).sum().item()


loader = DataLoader(Squares(), batch_size=4, num_workers=2, collate_fn=collate, persistent_workers=True)
print([list(loader) for _ in range(2)])
del loader
