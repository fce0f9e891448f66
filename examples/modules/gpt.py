# tau: model
"""A GPT that learns to continue a text, character by character.

scripts/fetch-text                      # writes input.txt; any other text of some megabytes will do
tau train --model py:examples/modules/gpt.py --nodes 3 --minibatch 32 --epochs 2
"""

import pathlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

LAYERS, WIDTH, HEADS, CONTEXT = 4, 128, 4, 64
TEXT = pathlib.Path(__file__).with_name("input.txt").read_bytes()
CHARACTERS, IDS = torch.tensor(list(TEXT), dtype=torch.uint8).unique(return_inverse=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), wide, nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2))
        scores = q @ k.mT / (WIDTH / HEADS) ** 0.5
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)  # Causal mask: no position sees later ones.
        x = x + self.out((scores.masked_fill(later, float("-inf")).softmax(3) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters, self.positions = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, ids):
        return self.head(self.blocks(self.characters(ids) + self.positions.weight[: ids.shape[1]]))


def model():
    return GPT()


def windows(ids):
    """Each sample is a window of the text; its targets are the characters that follow each of its characters."""
    end = (len(ids) - 1) // CONTEXT * CONTEXT
    return TensorDataset(ids[:end].view(-1, CONTEXT), ids[1 : end + 1].view(-1, CONTEXT))


def data():
    train = len(IDS) * 9 // 10
    return windows(IDS[:train]), windows(IDS[train:])


def loss(net, batch):
    ids, following = batch
    return nn.functional.cross_entropy(net(ids).flatten(0, 1), following.flatten())
