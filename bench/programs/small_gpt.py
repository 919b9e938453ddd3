"""A training of a small GPT on the CPU, whose steps are timed, as a cell."""

import time

import torch

WIDTH, LAYERS, HEADS, LENGTH, BATCH, VOCABULARY = 256, 4, 4, 128, 8, 512


class Block(torch.nn.Module):
    """Attention, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.inward, self.outward = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the next block gets."""
        parts = self.inward(self.before(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.outward(seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.between(x))))


class Gpt(torch.nn.Module):
    """3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return a number for each token that may follow."""
        return self.head(self.blocks(self.tokens(text) + self.places.weight))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))


def train(steps: int) -> float:
    """Return how long the fastest of so many steps computes, in seconds of a processor."""
    taken_s = []
    for _ in range(steps):
        began_s = time.process_time()
        logits = model(text[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken_s.append(time.process_time() - began_s)
    return min(taken_s)


train(3)
