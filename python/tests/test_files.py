"""Tests of model files in Python, without the extension. They need PyTorch."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

from test_data import positions
from test_worker import HAS_TORCH, Array, loaded

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight
        self.frozen = nn.Parameter(torch.full((2,), 0.25), requires_grad=False)
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, ids):
        return self.head(self.norm(self.words(ids)))

model = Net

def data():
    ids = torch.utils.data.TensorDataset(torch.arange(20) % 5)
    return ids, ids

def loss(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[0])
"""


def safetensors(tensors, metadata):
    """The bytes of a safetensors file: (key, type, shape, bytes) of each tensor, and its metadata."""
    header, data = {"__metadata__": metadata}, b""
    for key, dtype, shape, contents in tensors:
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(contents)]}
        data += contents
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
class Files(unittest.TestCase):
    def setUp(self):
        self.worker = loaded()
        from tau import files

        self.files = files
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source = self.folder / "net.py"
        self.source.write_text(NET)

    def saved(self, **more):
        """Trains a step and saves the module as a worker does. Returns the file, its keys and the state."""
        module = self.worker.Loader(None).load(str(self.source), NET.encode(), None, 7)
        count = sum(parameter.numel() for _, parameter in self.worker.trained(module.first))
        weights, gradient = Array([0.0] * count), Array([0.0] * count)
        module.first_weights(*weights.place)
        network = module.network(1)
        network.step(weights.place, positions(0, 1, 2, 7), 1, gradient.place)
        evaluates = module.network(1)
        evaluates.settle()
        types = {f"torch.{name}": kind for kind, name in self.files.TYPES.items()}
        tensors, at = [], 0
        for key, shape, _ in module.tensors():
            size = 1
            for side in shape:
                size *= side
            tensors.append((key, "F32", shape, weights.floats[at : at + size].tobytes()))
            at += size
        for key, dtype, shape, contents in evaluates.untrained(weights.place):
            tensors.append((key, types[dtype], shape, contents))
        metadata = {"tau": json.dumps({"code": module.seal().hex(), **more})}
        path = self.folder / "model.safetensors"
        path.write_bytes(safetensors(tensors, metadata))
        state = {key: tensor.clone() for key, tensor in network.net.state_dict().items()}
        return path, [key for key, _, _, _ in tensors], state

    def test_a_module_comes_back_with_its_buffers_and_frozen_parameters(self):
        import torch

        path, keys, expected = self.saved()
        self.assertEqual(len(keys), len(set(keys)))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            net = self.files.load(path, self.source)
        self.assertEqual(errors.getvalue(), "")
        self.assertFalse(net.training)
        found = net.state_dict()
        self.assertEqual(sorted(keys), sorted(expected))
        for key in expected:
            self.assertTrue(torch.equal(expected[key], found[key]), key)
        self.assertEqual(found["norm.num_batches_tracked"].item(), 1)
        self.assertIs(net.head.weight, net.words.weight)

    def test_a_saved_module_is_measured_on_the_held_out_samples(self):
        from tau.evaluate import evaluate

        path, _, _ = self.saved()
        with contextlib.redirect_stderr(io.StringIO()):
            means, samples, samples_in_data = evaluate(path, self.source)
            net = self.files.load(path, self.source)
        import torch

        ids = torch.arange(20) % 5
        with torch.no_grad():
            expected = torch.nn.functional.cross_entropy(net(ids), ids).item()
        self.assertEqual((samples, samples_in_data), (20, 40))
        self.assertAlmostEqual(means["loss"], expected, places=6)

    def test_a_mean_is_over_the_samples_that_have_its_name(self):
        from tau.evaluate import evaluate

        path, _, _ = self.saved()
        rare = """
def data():
    return torch.utils.data.TensorDataset(torch.arange(20) % 5), torch.utils.data.TensorDataset(torch.arange(200) % 5)

def evaluate(net, batch):
    return {"loss": 1.0, **({"rare": 0.5} if len(batch[0]) == 128 else {})}
"""
        self.source.write_text(NET + rare)
        with contextlib.redirect_stderr(io.StringIO()):
            means, samples, _ = evaluate(path, self.source)
        self.assertEqual((means, samples), ({"loss": 1.0, "rare": 0.5}, 200))

    def test_other_code_is_noticed(self):
        path, _, _ = self.saved()
        self.source.write_text(NET + "\n")
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.files.load(path, self.source)
        self.assertIn("is not the code that", errors.getvalue())
        self.source.write_text(NET.replace("self.norm = ", "self.renamed = self.norm = "))
        with self.assertRaises(RuntimeError), contextlib.redirect_stderr(errors):
            self.files.load(path, self.source)

    def test_what_is_no_model_is_refused(self):
        path = self.folder / "model.safetensors"
        for contents, says in [
            (b"", "is no safetensors file"),
            (b"\xff" * 20, "is no safetensors file"),
            (safetensors([], {}), "was not saved by Tau"),
            (safetensors([("a", "F32", [2], b"1234")], {"tau": "{}"}), "is damaged"),
            (safetensors([("a", "X", [1], b"1234")], {"tau": "{}"}), "is damaged"),
            (safetensors([], {"tau": "{"}), "is damaged"),
        ]:
            path.write_bytes(contents)
            with self.assertRaises(self.files.NotAModel) as raised:
                self.files.load(path, self.source)
            self.assertIn(says, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
