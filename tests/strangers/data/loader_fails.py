# What a worker of a DataLoader raises says so in the program.
from torch.utils.data import DataLoader, Dataset


class Broken(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise KeyError("no such sample")


try:
    list(DataLoader(Broken(), num_workers=1))
except KeyError as error:
    print("Caught KeyError in DataLoader worker process 0" in str(error), "no such sample" in str(error))
