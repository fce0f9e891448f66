"""The samples of a model file's own function `data`."""

import hashlib

# Samples of each dataset that are hashed, so that nodes can compare their data.
HASHED_SAMPLES = 64
# Largest number of classes that samples are told apart by.
CLASSES_MAX = 1 << 16
SAMPLES_MAX = (1 << 32) - 1


class DataMistake(Exception):
    """The user's data cannot be used; the text is a sentence."""


class Data:
    """Samples of two datasets, numbered by one position: those to train on come first, then those held out."""

    def __init__(self, made, collate, fingerprint):
        from torch.utils.data import default_collate

        self.train, self.test = checked(made)
        self.collate = collate or default_collate
        self.fingerprint = fingerprint

    def batch(self, positions):
        """A minibatch of the samples at these positions."""
        first = len(self.train)
        if positions[0] < first:
            return self.collate(items(self.train, positions))
        return self.collate(items(self.test, [position - first for position in positions]))

    def classes(self):
        """The class of each training sample, from 0, as bytes of 32-bit numbers; all are 0 if they have no targets."""
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
        """A hash of the data. Each sample that it takes is drawn after a call of `seed`."""
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
    """The two datasets that the user's function has returned, if Tau can choose their samples."""
    from torch.utils.data import DataLoader

    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise DataMistake("data() returns no pair: return two datasets, one to train on and one held out")
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


def items(dataset, indices):
    """The samples of a dataset at these indices."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def absorb(sha, value):
    """Takes a sample, or a part of one, into a hash. Objects of unknown kinds count by their kind."""
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
        sha.update(f"{value!r}\n".encode())
    elif isinstance(value, torch.Tensor) or hasattr(value, "__array__"):
        tensor = torch.as_tensor(value)
        sha.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    else:
        sha.update(f"{type(value).__name__}\n".encode())
