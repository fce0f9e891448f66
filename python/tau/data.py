"""The samples that the function `data` in the user's file returns."""

import hashlib

# Number of samples of each dataset that are hashed, so that nodes can compare their data.
HASHED_SAMPLES = 64
# Largest number of classes; samples with more different targets count as samples without classes.
CLASSES_MAX = 1 << 16
SAMPLES_MAX = (1 << 32) - 1


class DataMistake(Exception):
    """The user's data, loss or measurements cannot be used; the text is a sentence."""


class Data:
    """Samples of two datasets, numbered together by their *position*: training samples first, then test samples."""

    def __init__(self, made, collate, fingerprint):
        from torch.utils.data import default_collate

        self.train, self.test = checked(made)
        # A dataset that grows must not move the positions of the others.
        self.trained = len(self.train)
        self.collate = collate or default_collate
        self.fingerprint = fingerprint

    @classmethod
    def of(cls, code):
        """The samples of a file of code."""
        return cls(code.data(), getattr(code, "collate", None), getattr(code, "fingerprint", None))

    def batch(self, positions):
        """A minibatch of the samples at these positions."""
        first = self.trained
        if positions[0] < first:
            return self.collate(items(self.train, positions))
        return self.collate(items(self.test, [position - first for position in positions]))

    def classes(self):
        """The class of each training sample, from 0, as bytes of 32-bit numbers; all 0 if `targets` are no classes."""
        import torch

        count = len(self.train)
        none = torch.zeros(count, dtype=torch.int32)
        targets = getattr(self.train, "targets", None)
        try:
            targets = torch.as_tensor(targets) if targets is not None else none
        except (TypeError, ValueError, RuntimeError):
            targets = none
        if targets.shape != (count,) or targets.is_floating_point() or targets.is_complex():
            targets = none
        values, numbers = torch.unique(targets, return_inverse=True)
        numbers = numbers if len(values) <= CLASSES_MAX else none
        return numbers.to(torch.int32).numpy().tobytes()

    def hash(self, seed):
        """A hash of the data. It calls `seed` before it reads each sample, so that nodes draw the same augmentation."""
        sha = hashlib.sha256()
        for dataset in (self.train, self.test):
            count = len(dataset)
            sha.update(f"{count} samples\n".encode())
            taken = {"full": count, "counts": 0}.get(self.fingerprint, min(count, HASHED_SAMPLES))
            for number in range(taken):
                seed(number)
                [sample] = items(dataset, [number * count // taken])
                absorb(sha, sample)
        return sha.digest()


def checked(made):
    """The two datasets that the user's function has returned. Fails if Tau cannot choose their samples."""
    from torch.utils.data import DataLoader

    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise DataMistake("data() returns no pair: return two datasets, one to train on and one to test on")
    for dataset in made:
        kind = type(dataset).__name__
        if isinstance(dataset, DataLoader):
            raise DataMistake("data() returns a DataLoader: return its dataset, because Tau chooses the samples")
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataMistake(f"data() returns a {kind} without length or index: give it __len__ and __getitem__")
        if len(dataset) == 0:
            raise DataMistake(f"data() returns an empty {kind}: both datasets need samples")
    if sum(len(dataset) for dataset in made) > SAMPLES_MAX:
        raise DataMistake(f"data() returns more than {SAMPLES_MAX} samples, which is the most that Tau can number")
    return made


def measured(code, net, batch):
    """The means of a minibatch by the user's function `evaluate`, or the loss if there is none: names and numbers."""
    if not callable(getattr(code, "evaluate", None)):
        return [("loss", mean_loss(code, net, batch).item())]
    found = code.evaluate(net, batch)
    if not isinstance(found, dict) or "loss" not in found:
        raise DataMistake('evaluate() returns no loss: return a dict like {"loss": …, "accuracy": …}')
    return [(str(name), float(number)) for name, number in found.items()]


def mean_loss(code, net, batch):
    """The mean loss of a minibatch, a tensor."""
    import torch

    loss = code.loss(net, batch)
    if not isinstance(loss, torch.Tensor):
        raise DataMistake(f"loss() returns a {type(loss).__name__}: return a tensor, the mean loss")
    if loss.numel() != 1:
        raise DataMistake(f"loss() returns a tensor of {loss.numel()} numbers: return their mean")
    return loss


def items(dataset, indices):
    """The samples of a dataset at these indices."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def rows_of(outputs, samples):
    """A module's outputs as bytes of 32-bit floats. Fails if they are no tensor with a row for each sample."""
    import torch

    if not isinstance(outputs, torch.Tensor):
        raise DataMistake(f"the module returns a {type(outputs).__name__}: return a tensor of outputs")
    if outputs.dim() == 0 or outputs.shape[0] != samples:
        shape = tuple(outputs.shape)
        raise DataMistake(
            f"the module returns a tensor of shape {shape} for {samples} samples: return a row for each sample"
        )
    return numbers_of(outputs.to(torch.float32))


def numbers_of(tensor):
    """The numbers of a tensor as bytes, in the order of its elements."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def absorb(sha, value):
    """Adds a sample, or a part of one, to a hash. Of objects of other types only the name of the type is hashed."""
    import torch

    if isinstance(value, dict):
        for key in value:
            sha.update(f"{key!r}:".encode())
            absorb(sha, value[key])
    elif isinstance(value, (tuple, list)):
        sha.update(f"{len(value)} parts\n".encode())
        for part in value:
            absorb(sha, part)
    elif isinstance(value, (str, int, float, bool, bytes, type(None))):
        # The `repr` of a number of NumPy's depends on its release.
        sha.update(f"{value!s}\n".encode())
    elif isinstance(value, torch.Tensor) or hasattr(value, "__array__"):
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError):
            # An array of texts, for example, which `collate` may know.
            sha.update(f"{value!s}\n".encode())
            return
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(numbers_of(tensor))
    else:
        sha.update(f"{type(value).__name__}\n".encode())
