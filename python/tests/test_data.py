"""Tests of modules with samples, loss and measurements of their own, without the extension. They need PyTorch."""

import array
import unittest

from test_worker import HAS_TORCH, Array, loaded

OWN = """
import torch
from torch import nn

class Points(torch.utils.data.Dataset):
    def __init__(self, count):
        self.x = torch.arange(2.0 * count).view(count, 2)
        self.targets = [4 if point % 3 else 7 for point in range(count)]
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index] + NOISE, self.targets[index]

def model():
    return nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))

def data():
    return Points(6), Points(4)

def loss(net, batch):
    x, targets = batch
    return (net(x.long() % 9) ** 2).mean() + 0 * x.sum()
"""


@unittest.skipUnless(HAS_TORCH, "there is no PyTorch")
class OwnData(unittest.TestCase):
    def setUp(self):
        self.worker = loaded()

    def module(self, code=OWN, noise="0", more=""):
        code = code.replace("NOISE", noise) + more
        return self.worker.Loader(None).load("net.py", code.encode(), None, 7)

    def network(self, *arguments, **named):
        module = self.module(*arguments, **named)
        count = sum(parameter.numel() for _, parameter in self.worker.trained(module.first))
        weights, gradient = Array([0.0] * count), Array([9.0] * count)
        module.first_weights(*weights.place)
        return module.network(1), weights, gradient

    def refused(self, says, *arguments, **named):
        with self.assertRaises(self.worker.Failure) as raised:
            network, weights, gradient = self.network(*arguments, **named)
            network.step(weights.place, positions(0, 5), 0, gradient.place)
            network.measure(weights.place, positions(6, 9))
        self.assertIn(says, str(raised.exception))

    def test_loss_and_gradient_are_those_of_pytorch(self):
        import torch

        network, weights, gradient = self.network()
        found = network.step(weights.place, positions(4, 1), 3, gradient.place)
        net = network.module.made()
        code = network.module.code
        batch = torch.utils.data.default_collate([code.data()[0][4], code.data()[0][1]])
        expected = code.loss(net, batch)
        self.assertEqual(found, expected.item())
        expected.backward()
        flat = torch.cat([parameter.grad.flatten() for _, parameter in self.worker.trained(net)])
        self.assertEqual(gradient.floats.tolist(), flat.tolist())
        # Positions from 6 on are those of the held-out samples.
        batch = torch.utils.data.default_collate([code.data()[1][0], code.data()[1][3]])
        with torch.no_grad():
            expected = code.loss(net.eval(), batch).item()
        self.assertEqual(network.measure(weights.place, positions(6, 9)), [("loss", expected)])

    def test_training_goes_on_after_an_evaluation_as_without_one(self):
        network, weights, gradient = self.network(noise="torch.rand(2)")
        first = network.step(weights.place, positions(0, 1), 3, gradient.place)
        slopes = gradient.floats.tolist()
        other = Array([1.0] * weights.place[1])
        network.measure(other.place, positions(6))
        self.assertEqual(network.step(weights.place, positions(0, 1), 3, gradient.place), first)
        self.assertEqual(gradient.floats.tolist(), slopes)
        inside = [parameter.data_ptr() for parameter in network.parameters]
        self.assertIn(weights.place[0], inside)

    def test_running_statistics_are_measured_on_the_modules_own_samples(self):
        import torch

        code = OWN.replace("nn.LayerNorm(4)", "nn.BatchNorm1d(2)")
        network, weights, _ = self.network(code)
        self.assertTrue(network.settle())
        network.observe(weights.place, positions(0, 1, 3))
        norm, x = network.net[2], network.module.code.data()[0].x[[0, 1, 3]]
        with torch.no_grad():
            entered = network.module.made()[:2](x.long() % 9)
        torch.testing.assert_close(norm.running_mean, entered.mean((0, 2)))

    def test_adam_moves_embeddings_and_the_head(self):
        def tables(**named):
            return [key for key, _, by_adam in self.module(**named).tensors() if by_adam]

        self.assertEqual(tables(), ["0.weight", "3.weight"])
        self.assertEqual(tables(more='adam = ["1.*"]\n'), ["0.weight", "1.weight", "3.weight"])
        self.assertEqual(tables(more='muon = ["3.weight", "0.*"]\n'), [])
        self.refused("adam names 'x*', but no matrix", more='adam = ["x*"]\n')
        self.refused("adam is no list of names", more='adam = "head"\n')

    def test_a_head_is_what_a_minibatch_enters_last(self):
        more = """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(2, 4), nn.Linear(4, 2)
        self.table = nn.Parameter(torch.ones(4, 4))
    def forward(self, x):
        return self.head(self.first(x.float()) @ self.table)
model = Own
"""
        tables = [key for key, _, by_adam in self.module(more=more).tensors() if by_adam]
        self.assertEqual(tables, ["head.weight"])

    def test_a_parameter_that_is_replaced_is_noticed(self):
        more = """
def loss(net, batch):
    if net.training and net[1].bias.shape == (4,) and len(batch[0]) == 3:
        net[1].bias = nn.Parameter(torch.zeros(4))
    return (net(batch[0].long() % 9) ** 2).mean()
"""
        network, weights, gradient = self.network(more=more)
        with self.assertRaises(self.worker.Failure) as raised:
            network.step(weights.place, positions(0, 1, 2), 0, gradient.place)
        self.assertIn("trains other parameters than after model()", str(raised.exception))

    def test_classes_are_those_of_the_targets(self):
        classes, test, one = self.module().data()
        self.assertEqual((array.array("I", classes).tolist(), test), ([1, 0, 0, 1, 0, 0], 4))
        self.assertEqual(self.module(noise="torch.rand(2)").data()[2], self.module(noise="torch.rand(2)").data()[2])
        self.assertNotEqual(self.module(noise="1").data()[2], one)
        counts = 'fingerprint = "counts"\n'
        self.assertEqual(self.module(noise="1", more=counts).data()[2], self.module(more=counts).data()[2])

    def test_an_evaluation_may_give_numbers_of_any_name(self):
        more = "def evaluate(net, batch):\n    return GIVEN\n"
        given = more.replace("GIVEN", '{"loss": torch.tensor(0.5), "bits per character": 2}')
        network, weights, _ = self.network(more=given)
        self.assertEqual(network.measure(weights.place, positions(6)), [("loss", 0.5), ("bits per character", 2.0)])
        self.refused("net.py: evaluate() returns no loss", more=more.replace("GIVEN", "3"))
        self.refused("returns no loss", more=more.replace("GIVEN", "{}"))

    def test_mistakes_in_data_and_loss_are_named(self):
        without = OWN.replace
        self.refused("has no function data()", without("def data", "def other"))
        self.refused("has data() and no loss(net, batch)", without("def loss", "def other"))
        self.refused("return two datasets", without("return Points(6), Points(4)", "return Points(6)"))
        self.refused("returns an empty Points", without("Points(4)", "Points(0)"))
        loader = without("Points(4)", "torch.utils.data.DataLoader(Points(4))")
        self.refused("return its dataset, because Tau chooses", loader)
        self.refused("returns a generator without length", without("Points(4)", "(x for x in [1])"))
        mean = "(net(x.long() % 9) ** 2).mean() + 0 * x.sum()"
        self.refused(
            "returns a tensor of 4 numbers: return their mean", without(mean, "net(x.long() % 9)[0].flatten()")
        )
        self.refused("returns a float: return a tensor", without(mean, "1.0"))
        self.refused("does not depend on the weights", without(mean, "x.sum()"))
        with self.assertRaises(self.worker.Failure) as raised:
            self.worker.Loader(None).load("net.py", OWN.encode(), [2], 7)
        self.assertIn("leave --data out, or loss()", str(raised.exception))


def positions(*numbers):
    return array.array("I", numbers).tobytes()


if __name__ == "__main__":
    unittest.main()
