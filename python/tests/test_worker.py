"""Tests of what `tau.worker` makes of the user's code, without the extension. They need PyTorch."""

import array
import importlib.util
import pathlib
import sys
import types
import unittest

HAS_TORCH = importlib.util.find_spec("torch") is not None
PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "tau"
POINTS = """
from torch import nn

class Frozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)

def model():
    return nn.Sequential(nn.Linear(2, 3), HIDDEN, nn.Linear(3, 2))
"""


def loaded():
    """The module `tau.worker`, with an empty extension."""
    tau = types.ModuleType("tau")
    tau.__path__ = [str(PACKAGE)]
    tau._tau = types.SimpleNamespace(VERSION="test")
    sys.modules["tau"] = tau
    # Later, sources in this folder would be those of a model.
    importlib.import_module("tau.evaluate")
    return importlib.import_module("tau.worker")


class Array:
    """Floats in memory that stays where it is."""

    def __init__(self, floats):
        self.floats = array.array("f", floats)

    @property
    def place(self):
        return self.floats.buffer_info()


@unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
class Worker(unittest.TestCase):
    def setUp(self):
        self.worker = loaded()

    def module(self, code):
        return self.worker.Loader(None).load("net.py", code.encode(), [2], 7)

    def network(self, hidden="nn.ReLU()"):
        """A network of POINTS, with the worker's weights and gradient."""
        module = self.module(POINTS.replace("HIDDEN", hidden))
        count = sum(parameter.numel() for _, parameter in self.worker.trained(module.first))
        weights, gradient = Array([0.0] * count), Array([9.0] * count)
        module.first_weights(*weights.place)
        return module.network(1), weights, gradient

    def refused(self, code, says):
        with self.assertRaises(self.worker.Failure) as raised:
            self.module(code).network(1)
        self.assertIn(says, str(raised.exception))

    def test_mistakes_are_named_with_their_place(self):
        points = POINTS.replace
        self.refused("def model(:\n", "net.py:1: SyntaxError")
        self.refused("import nothing\n", "net.py:1 in <module>: there is no module nothing: install it")
        self.refused("model = 5\n", "has no function model()")
        self.refused("def model():\n    return 5\n", "returns a int")
        self.refused("from torch import nn\nmodel = nn.ReLU\n", "no parameters to train")
        self.refused(points("HIDDEN", "nn.LazyLinear(3)"), "has no size yet")
        self.refused(points("HIDDEN", "nn.Linear(3, 3).double()"), "weights must be float32")
        self.refused("from torch import nn\nnet = nn.Linear(2, 2)\ndef model():\n    return net\n", "returned before")
        shared = "    net[1].weight.data = net[0].weight.data\n    return net\n"
        shared = "def model():\n    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))\n" + shared
        shared = "from torch import nn\n" + shared
        self.refused(shared, "share memory")
        grows = "from torch import nn\nn = 2\ndef model():\n    global n\n    n += 1\n    return nn.Linear(2, n)\n"
        self.refused(grows, "other parameters when it is called again")

    def test_values_of_an_exception_are_not_told(self):
        code = "def model():\n    raise ValueError('secret')\n"
        with self.assertRaises(self.worker.Failure) as raised:
            self.module(code)
        self.assertIn("net.py:2 in model: ValueError", str(raised.exception))
        self.assertNotIn("secret", str(raised.exception))

    def test_gradients_are_those_of_pytorch_at_the_workers_weights(self):
        import torch

        network, weights, gradient = self.network()
        rows, slopes = Array([0.5, -1.0, 2.0, 0.25]), Array([0.1, -0.2, 0.3, 0.4])
        outputs = array.array("f", network.forward(weights.place, rows.place, 2, 5))
        network.backward(slopes.place, gradient.place)
        net = network.module.made()
        expected = net(torch.tensor(rows.floats).view(2, 2))
        self.assertEqual(outputs.tolist(), expected.flatten().tolist())
        expected.backward(torch.tensor(slopes.floats).view(2, 2))
        flat = torch.cat([parameter.grad.flatten() for _, parameter in self.worker.trained(net)])
        self.assertEqual(gradient.floats.tolist(), flat.tolist())
        inferred = array.array("f", network.infer(weights.place, rows.place, 2, 0))
        self.assertEqual(inferred.tolist(), outputs.tolist())

    def test_running_statistics_are_measured_at_the_weights_that_are_evaluated(self):
        import torch

        trains, weights, gradient = self.network("nn.BatchNorm1d(3)")
        evaluates = trains.module.network(1)
        rows = Array([0.5, -1.0, 2.0, 0.25, 3.0, 1.0])
        trains.forward(weights.place, rows.place, 3, 5)
        slopes = Array([1.0] * 6)
        trains.backward(slopes.place, gradient.place)
        seen = trains.net[1].running_mean.clone()
        # What is measured replaces what training has seen, minibatch for minibatch.
        minibatches = [[0.5, -1.0, 2.0, 0.25], [4.0, 1.0, 1.0, -3.0]]
        self.assertTrue(evaluates.settle())
        self.assertEqual(evaluates.net[1].running_mean.tolist(), seen.tolist())
        arrays = [Array(minibatch) for minibatch in minibatches]
        for observed in arrays:
            evaluates.observe_rows(weights.place, observed.place, 2)
        norm = evaluates.net[1]
        with torch.no_grad():
            entered = [trains.net[0](torch.tensor(minibatch).view(2, 2)) for minibatch in minibatches]
        means, variances = (sum(found) / 2 for found in zip(*((x.mean(0), x.var(0)) for x in entered)))
        torch.testing.assert_close(norm.running_mean, means)
        torch.testing.assert_close(norm.running_var, variances)
        self.assertEqual(norm.momentum, 0.1)
        self.assertEqual(trains.net[1].running_mean.tolist(), seen.tolist())
        # A second evaluation begins anew.
        evaluates.settle()
        evaluates.observe_rows(weights.place, arrays[0].place, 2)
        torch.testing.assert_close(norm.running_mean, entered[0].mean(0))

    def test_a_norm_that_the_users_code_keeps_from_training_keeps_its_statistics(self):
        evaluates, _, _ = self.network("Frozen(3)")
        self.assertFalse(evaluates.settle())
        evaluates, _, _ = self.network("nn.LayerNorm(3)")
        self.assertFalse(evaluates.settle())

    def test_a_key_decides_dropout(self):
        network, weights, _ = self.network("nn.Dropout(0.5)")
        rows = Array([1.0] * 40)
        first, again, other = (network.forward(weights.place, rows.place, 20, key) for key in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_arrays_of_another_length_are_refused(self):
        network, weights, _ = self.network()
        rows, (address, count) = Array([1.0, 2.0]), weights.place
        with self.assertRaises(self.worker.Failure):
            network.forward((address, count + 1), rows.place, 1, 1)
        with self.assertRaises(self.worker.Failure):
            network.forward(weights.place, rows.place, 2, 1)

    def test_a_released_network_has_memory_of_its_own(self):
        network, weights, _ = self.network()
        rows = Array([1.0, 2.0])
        network.forward(weights.place, rows.place, 1, 1)
        start, length = weights.place[0], 4 * weights.place[1]
        inside = [start <= parameter.data_ptr() < start + length for parameter in network.parameters]
        self.assertTrue(all(inside))
        network.release()
        outside = [not start <= parameter.data_ptr() < start + length for parameter in network.parameters]
        self.assertTrue(all(outside))


if __name__ == "__main__":
    unittest.main()
