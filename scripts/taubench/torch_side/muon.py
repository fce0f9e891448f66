"""Tau's `muon` for PyTorch: matrices by orthogonal updates in blocks of rows, everything else by Adam."""

import torch

COEFFICIENTS = 3.4445, -4.7750, 2.0315
ADAM_RATE = 0.1
ADAM_BETA2 = 0.99
EPSILON = 1e-14
SCALE_MOST = 8.0


def orthogonal(x, steps):
    """Matrices (a stack of them) with all singular values made about one, by iterations on their Gram matrices."""
    wide = x.shape[-2] <= x.shape[-1]
    gram = x @ x.mT if wide else x.mT @ x
    norm = gram.square().sum((-2, -1), keepdim=True).sqrt() + EPSILON
    gram = gram / norm
    a, b, c = COEFFICIENTS
    one = a * torch.eye(gram.shape[-1], device=x.device)
    product = None
    for step in range(steps):
        polynomial = torch.baddbmm(one + b * gram, gram, gram, alpha=c)
        product = polynomial if product is None else polynomial @ product
        if step + 1 < steps:
            gram = polynomial @ gram @ polynomial
    product = product / norm.sqrt()
    return product @ x if wide else x @ product


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.9, block=64, steps=5, every=2):
        parameters = list(parameters)
        matrices = [p for p in parameters if p.ndim > 1 and p.shape[0] > 1 and p[0].numel() > 1]
        vectors = [p for p in parameters if all(p is not matrix for matrix in matrices)]
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "block": block, "steps": steps})
        self.adam = torch.optim.Adam(vectors, lr=ADAM_RATE * lr, betas=(momentum, ADAM_BETA2), eps=1e-8)
        blocks = sum(-(-matrix.shape[0] // block) for matrix in matrices)
        self.every = max(1, min(every, blocks // 3))
        self.count = 0

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        self.adam.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        for vectors in self.adam.param_groups:
            vectors["lr"] = ADAM_RATE * group["lr"]
        self.adam.step()
        self.count += 1
        number = 0
        for matrix in group["params"]:
            number = self.move(matrix, group, number)

    def move(self, matrix, group, number):
        """Moves the blocks of a matrix that have their turn. Blocks are numbered through all matrices."""
        state = self.state[matrix]
        if not state:
            state["velocity"] = torch.zeros_like(matrix)
        momentum, rows = group["momentum"], group["block"]
        velocity = state["velocity"].mul_(momentum).add_(matrix.grad)
        direction = (matrix.grad + momentum * velocity).flatten(1)
        weights = matrix.view(matrix.shape[0], -1)
        scale = min(max(1.0, weights.shape[0] / weights.shape[1]), SCALE_MOST**2) ** 0.5 * self.every
        whole = weights.shape[0] // rows
        turns = [at for at in range(whole) if (number + at + self.count) % self.every == 0]
        if turns:
            stack = direction[: whole * rows].view(whole, rows, -1)[turns]
            place = weights[: whole * rows].view(whole, rows, -1)
            place[turns] -= group["lr"] * scale * orthogonal(stack, group["steps"])
        if weights.shape[0] % rows:
            if (number + whole + self.count) % self.every == 0:
                rest = direction[whole * rows :].unsqueeze(0)
                weights[whole * rows :] -= group["lr"] * scale * orthogonal(rest, group["steps"])[0]
            whole += 1
        return number + whole
