"""Small tables that nobody tuned on: scikit-learn's own sets and generators, and those of Debian's R packages.

Runs in a Python that has scikit-learn and rdata, which scripts/bench-tables makes under target/tables.
"""

import argparse
import json
import pathlib

import numpy
import pandas
import rdata
from sklearn import compose, datasets, linear_model, metrics, model_selection, neural_network, pipeline, preprocessing

SEEDS = (1, 2, 3)
FOLDS = 5
R_LIBRARY = "usr/lib/R/site-library"
# The rule's numbers were chosen on the tables of the first list, and none of them on those of the second.
TUNED_ON = """iris wine cancer digits classification moons vehicle glass pima diabetes friedman1 friedman2 boston lags
sonar ionosphere vowel satellite shuttle letters circles friedman3 houses wages ozone"""
NOT_TUNED_ON = """zoo votes soybean dna hmda servo cps1985 schools college"""


def bundled(load):
    data = load()
    return data.data, data.target


def of_r(library, package, name, label, rows=None, drop=(), seed=0, as_texts=False):
    """A table of an R package: inputs with texts as indicators, and the label. A missing text is a category."""
    table = rdata.read_rda(library / package / "data" / f"{name}.rda")[name].drop(columns=list(drop))
    if as_texts:
        table = table.astype(str)
    table = table.dropna()
    if rows:
        table = table.sample(rows, random_state=seed)
    inputs = table.drop(columns=label)
    for column in inputs:
        numbers = pandas.to_numeric(inputs[column].astype(str), errors="coerce")
        inputs[column] = inputs[column].astype(str) if as_texts or numbers.isna().any() else numbers
    return pandas.get_dummies(inputs).to_numpy(float), table[label].to_numpy()


def lags():
    """A time series of two waves, a walk and noise: 24 values tell the one after the next."""
    random = numpy.random.default_rng(0)
    time = numpy.arange(2400)
    walk = 0.015 * numpy.cumsum(random.normal(size=2400))
    series = numpy.sin(time / 12) + 0.5 * numpy.sin(time / 41) + walk + 0.1 * random.normal(size=2400)
    inputs = [series[first : first - 25] for first in range(24)] + [numpy.sin(time[25:] / 365)]
    return numpy.stack(inputs, 1), series[25:]


def tables(library):
    """Every table: its kind (class or number), and what makes it."""
    return {
        "iris": ("class", lambda: bundled(datasets.load_iris)),
        "wine": ("class", lambda: bundled(datasets.load_wine)),
        "cancer": ("class", lambda: bundled(datasets.load_breast_cancer)),
        "digits": ("class", lambda: bundled(datasets.load_digits)),
        "classification": (
            "class",
            lambda: datasets.make_classification(
                4000, 20, n_informative=10, n_redundant=4, n_classes=3, random_state=1
            ),
        ),
        "moons": ("class", lambda: datasets.make_moons(1000, noise=0.3, random_state=2)),
        "vehicle": ("class", lambda: of_r(library, "mlbench", "Vehicle", "Class")),
        "glass": ("class", lambda: of_r(library, "mlbench", "Glass", "Type")),
        "pima": ("class", lambda: of_r(library, "mlbench", "PimaIndiansDiabetes", "diabetes")),
        "diabetes": ("number", lambda: bundled(datasets.load_diabetes)),
        "friedman1": ("number", lambda: datasets.make_friedman1(3000, 10, noise=1.0, random_state=3)),
        "friedman2": ("number", lambda: datasets.make_friedman2(800, noise=80.0, random_state=4)),
        "boston": ("number", lambda: of_r(library, "mlbench", "BostonHousing", "medv")),
        "lags": ("number", lags),
        "sonar": ("class", lambda: of_r(library, "mlbench", "Sonar", "Class")),
        "ionosphere": ("class", lambda: of_r(library, "mlbench", "Ionosphere", "Class")),
        "vowel": ("class", lambda: of_r(library, "mlbench", "Vowel", "Class", drop=["V1"])),
        "satellite": ("class", lambda: of_r(library, "mlbench", "Satellite", "classes")),
        "shuttle": ("class", lambda: of_r(library, "mlbench", "Shuttle", "Class", rows=12000, seed=5)),
        "letters": ("class", lambda: of_r(library, "mlbench", "LetterRecognition", "lettr", rows=12000, seed=6)),
        "circles": ("class", lambda: datasets.make_circles(600, noise=0.15, factor=0.5, random_state=7)),
        "friedman3": ("number", lambda: datasets.make_friedman3(1500, noise=0.1, random_state=8)),
        "houses": ("number", lambda: of_r(library, "AER", "HousePrices", "price")),
        "wages": ("number", lambda: of_r(library, "AER", "CPS1988", "wage", rows=12000, seed=9)),
        "ozone": ("number", lambda: of_r(library, "mlbench", "Ozone", "V4", drop=["V2", "V9"])),
        "zoo": ("class", lambda: of_r(library, "mlbench", "Zoo", "type")),
        "votes": ("class", lambda: of_r(library, "mlbench", "HouseVotes84", "Class", as_texts=True)),
        "soybean": ("class", lambda: of_r(library, "mlbench", "Soybean", "Class", as_texts=True)),
        "dna": ("class", lambda: of_r(library, "mlbench", "DNA", "Class")),
        "hmda": ("class", lambda: of_r(library, "AER", "HMDA", "deny")),
        "servo": ("number", lambda: of_r(library, "mlbench", "Servo", "Class")),
        "cps1985": ("number", lambda: of_r(library, "AER", "CPS1985", "wage")),
        "schools": (
            "number",
            lambda: of_r(library, "AER", "CASchools", "read", drop=["math", "district", "school"]),
        ),
        "college": ("number", lambda: of_r(library, "AER", "CollegeDistance", "score")),
    }


def baselines(kind, train, test, seed):
    """What a network of scikit-learn's and a linear model reach on one fold, both with scaled inputs and targets."""
    if kind == "class":
        models = (neural_network.MLPClassifier(random_state=seed), linear_model.LogisticRegression(max_iter=1000))
        made = [pipeline.make_pipeline(preprocessing.StandardScaler(), model) for model in models]
        return [float(model.fit(*train).score(*test)) for model in made]
    models = (neural_network.MLPRegressor(random_state=seed), linear_model.Ridge())
    scaled = [pipeline.make_pipeline(preprocessing.StandardScaler(), model) for model in models]
    made = [compose.TransformedTargetRegressor(model, transformer=preprocessing.StandardScaler()) for model in scaled]
    return [float(metrics.r2_score(test[1], model.fit(*train).predict(test[0]))) for model in made]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names")
    options.add_argument("packages", type=pathlib.Path)
    options.add_argument("folder", type=pathlib.Path)
    options = options.parse_args()
    known = tables(options.packages / R_LIBRARY)
    for name in options.names.split(","):
        kind, make = known[name]
        inputs, answers = make()
        if name in ("wages", "cps1985"):
            answers = numpy.log(answers.astype(float))
        if kind == "class":
            answers = pandas.Categorical(answers).codes.astype("i4")
        answers = answers.astype("i4" if kind == "class" else "f4")
        inputs = inputs.astype("f4")
        for seed in SEEDS:
            folds = model_selection.KFold(FOLDS, shuffle=True, random_state=seed).split(inputs)
            for fold, (train, test) in enumerate(folds):
                part = {"x_train": train, "x_test": test}
                arrays = {key: inputs[rows] for key, rows in part.items()}
                arrays |= {key.replace("x", "y"): answers[rows] for key, rows in part.items()}
                numpy.savez(options.folder / f"{name}-{seed}-{fold}.npz", **arrays)
                pairs = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
                network, line = baselines(kind, *pairs, seed)
                row = {"table": name, "kind": kind, "seed": seed, "fold": fold, "mlp": network, "linear": line}
                print(json.dumps(row), flush=True)


main()
