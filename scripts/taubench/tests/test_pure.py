"""Tables, data, timetables and turns: what can be told without a process."""

import pathlib
import random
import struct
import tempfile
import unittest

from taubench import data, nets
from taubench.bench import reached, summary, together
from taubench.errors import Failed
from taubench.faults import EVERY, timetable
from taubench.processes import last_line
from taubench.report import cell, mean, one_of_each_first, table
from taubench.steps import alternate


class Report(unittest.TestCase):
    def test_columns_are_as_wide_as_their_widest_cell(self):
        told = table(["net", "ms"], [["a", "1.25"], ["longer", "-"]])
        self.assertEqual(told, "   net    ms\n     a  1.25\nlonger     -")

    def test_a_cell_without_a_value_is_a_dash(self):
        self.assertEqual(cell({"speed": 1234.5}, "speed", ",.0f"), "1,234")
        self.assertEqual(cell({"speed": None}, "speed", ",.0f"), "-")
        self.assertEqual(cell(None, "speed", ",.0f"), "-")

    def test_the_mean_of_nothing_is_nothing(self):
        self.assertEqual((mean([1, 2, 6]), mean([])), (3, 0))

    def test_one_thread_of_every_core_comes_first(self):
        self.assertEqual(one_of_each_first({0: "a", 1: "a", 2: "b", 3: "b"}), [0, 2, 1, 3])

    def test_the_last_line_that_says_something(self):
        self.assertEqual(last_line("first\nerror: why\n\n"), "error: why")
        self.assertEqual(last_line(""), "it did not say why")


class Measurements(unittest.TestCase):
    def test_speeds_add_up(self):
        both = together([{"samples_per_second": 10.0}, {"samples_per_second": 5.0}])
        self.assertEqual(both, {"samples_per_second": 15.0, "each": [10.0, 5.0]})

    def test_a_run_that_misses_its_target_is_no_time_to_it(self):
        self.assertEqual(reached({"accuracy": 0.968})["accuracy"], 0.968)
        with self.assertRaises(Failed):
            reached({"accuracy": 0.9})

    def test_a_summary_says_that_replicas_disagree(self):
        record = {"samples_per_second": 1500.0, "accuracy": 0.97, "seconds": 3.0, "replicas_agree": False, "ratio": 0.5}
        told = "1,500 samples/s, 3.0 s, accuracy 0.9700, REPLICAS DISAGREE, ratio 0.500"
        self.assertEqual(summary(record), told)
        self.assertEqual(summary({"error": "no word"}), "failed: no word")


class Data(unittest.TestCase):
    def test_idx_files_are_read(self):
        file = b"\0\0\x08\x02" + struct.pack(">2I", 2, 3) + bytes(range(6))
        self.assertEqual(data.parse_idx(file), ((2, 3), bytearray(range(6))))
        for broken in (file[:-1], b"\0\0\x0d" + file[3:]):
            with self.assertRaises(ValueError):
                data.parse_idx(broken)

    def test_mnist_is_in_this_tree(self):
        dimensions, labels = data.read_idx("t10k-labels-idx1-ubyte")
        self.assertEqual((dimensions, set(labels)), ((10_000,), set(range(10))))

    def test_every_class_has_two_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "classes.csv")
            data.write_many_classes(path, 4, 3)
            rows = [line.split(",") for line in path.read_text().splitlines()]
        self.assertEqual([row[-1] for row in rows], ["c00000", "c00001", "c00002"] * 2)
        self.assertEqual({len(row) for row in rows}, {5})

    def test_nets_end_in_their_classes(self):
        for net in (nets.PERCEPTRON, nets.CNN, nets.DEEP, nets.LARGE):
            self.assertTrue(net.layers.endswith(f"dense {net.classes}"), net.name)


class Timetable(unittest.TestCase):
    def test_nobody_is_hit_twice_at_once_and_the_first_never(self):
        for seed in range(50):
            faults = timetable(random.Random(seed), 4, 62)
            self.assertEqual([fault.at for fault in faults], [EVERY * turn for turn in range(1, 13)], seed)
            for fault in faults:
                self.assertIn(fault.node, (1, 2, 3), seed)
                others = [one for one in faults if one is not fault and one.node == fault.node]
                self.assertFalse([one for one in others if one.at <= fault.at < one.mended], seed)

    def test_a_seed_makes_the_same_faults_again(self):
        self.assertEqual(timetable(random.Random(3), 16, 90), timetable(random.Random(3), 16, 90))

    def test_where_nobody_can_be_hit_nobody_is(self):
        self.assertEqual(timetable(random.Random(1), 1, 60), [])
        for seed in range(50):
            self.assertTrue(timetable(random.Random(seed), 2, 60))


class Turns(unittest.TestCase):
    def test_both_take_turns_after_a_round_that_does_not_count(self):
        order = []

        class Stepper:
            def __init__(self, name):
                self.name = name

            def take(self, count):
                order.append(self.name)
                return [float(len(order))] * count

        ours, theirs = alternate(Stepper("ours"), Stepper("theirs"), 2, 2)
        self.assertEqual(order, ["ours", "theirs"] * 3)
        self.assertEqual((ours, theirs), ([[3.0, 3.0], [5.0, 5.0]], [[4.0, 4.0], [6.0, 6.0]]))
