# tau: model
"""A denoising autoencoder: it reconstructs an image from a noisy copy, through a narrow bottleneck.

tau train --model py:examples/modules/autoencoder.py --nodes 3 --epochs 10
"""

import torch
from torch import nn

SIDE, CODE, NOISE, TRAIN, TEST = 16, 8, 0.3, 8192, 1024

# Nodes compare only the number of samples, because releases of PyTorch round differently.
fingerprint = "counts"


def model():
    pixels = SIDE * SIDE
    encoder = nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, CODE)
    decoder = nn.Linear(CODE, 128), nn.ReLU(), nn.Linear(128, pixels), nn.Unflatten(1, (SIDE, SIDE))
    return nn.Sequential(*encoder, *decoder)


def data():
    """Images of two soft spots. A tensor is a dataset, too: it has a length and can be indexed."""
    drawn = torch.Generator().manual_seed(1)  # All nodes must have the same data.
    spots, at = torch.rand(TRAIN + TEST, 2, 3, 1, 1, generator=drawn), torch.arange(SIDE) / SIDE
    x, y, size = spots.unbind(2)
    distance = (at - x) ** 2 + (at.view(-1, 1) - y) ** 2
    pictures = torch.exp(-distance / (0.01 + 0.03 * size)).sum(1)
    return pictures[:TRAIN], pictures[TRAIN:]


def loss(net, pictures):
    """The loss may be anything that PyTorch can differentiate, here the error against the image without noise."""
    # Tau seeds PyTorch's generator before each step, so that the same job draws the same noise.
    noisy = pictures + NOISE * torch.randn_like(pictures)
    return nn.functional.mse_loss(net(noisy), pictures)


def evaluate(net, pictures):
    """Metrics with names of your own. The noise is the same in each evaluation, so that they can be compared."""
    noise = NOISE * torch.randn(pictures.shape, generator=torch.Generator().manual_seed(1))
    denoised, repeated = net(pictures + noise), net(pictures)
    error = nn.functional.mse_loss
    return {"loss": error(denoised, pictures), "noise": noise.square().mean(), "clean": error(repeated, pictures)}
