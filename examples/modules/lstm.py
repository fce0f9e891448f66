# tau: model
"""A recurrent network (LSTM) that predicts the next value of a curve from all values before it.

tau train --model py:examples/modules/lstm.py --nodes 3 --epochs 10
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

LENGTH, TRAIN, TEST = 64, 8192, 1024


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 64, batch_first=True), nn.Linear(64, 1)

    def forward(self, curves):  # (samples, values)
        states, _ = self.lstm(curves.unsqueeze(2))
        return self.head(states).squeeze(2)

# Nodes compare only the number of samples, because releases of PyTorch round differently.
fingerprint = "counts"


def model():
    return Forecast()


def data():
    """Sums of two sines with a little noise. To train on your own curves, read them from a file beside this one."""
    drawn = torch.Generator().manual_seed(1)  # All nodes must have the same data.
    speed, phase = torch.rand(2, TRAIN + TEST, 2, 1, generator=drawn)
    curves = torch.sin((0.1 + 0.5 * speed) * torch.arange(LENGTH + 1) + 6.28 * phase).sum(1)
    curves += 0.1 * torch.rand(curves.shape, generator=drawn) - 0.05
    pairs = curves[:, :-1], curves[:, 1:]
    return TensorDataset(*(part[:TRAIN] for part in pairs)), TensorDataset(*(part[TRAIN:] for part in pairs))


def loss(net, batch):
    values, following = batch
    return nn.functional.mse_loss(net(values), following)


def evaluate(net, batch):
    """The loss and, as a baseline, the error of the forecast that each value repeats the one before it."""
    values, following = batch
    return {"loss": loss(net, batch), "unchanged": nn.functional.mse_loss(values, following)}
