//! Tests of reading a small CSV file, valid and invalid.

use std::fs;

use protocol::job::data::DataSpec;
use tempfile::TempDir;

use super::*;

const IRIS: &str = "width,length,kind\n1,10,lily\n2,20,rose\n3,30,lily\n4,40,iris\n5,50,rose\n";

/// Makes a file with this text, and a data spec with these options for it.
pub(super) fn file(text: impl AsRef<[u8]>, options: &str) -> (TempDir, DataSpec) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.csv");
    fs::write(&path, text).unwrap();
    let spec = format!("csv:{}{options}", path.display());
    (directory, spec.parse().unwrap())
}

pub(super) fn open(text: impl AsRef<[u8]>, options: &str) -> Result<Dataset, DatasetError> {
    let (_directory, spec) = file(text, options);
    Dataset::open(&spec, 7, None)
}

/// Returns the data format of a model that takes two numbers in columns without names.
fn nameless<'a>(scaling: &'a Scaling, target: &'a Target) -> Known<'a> {
    Known {
        input: Shape::Flat(2),
        target,
        columns: None,
        encodings: &[],
        scaling,
    }
}

pub(super) fn open_for(text: &str, options: &str, known: Known<'_>) -> Result<Dataset, DatasetError> {
    let (_directory, spec) = file(text, options);
    Dataset::open_for(&spec, 7, None, known)
}

pub(super) fn inputs(text: &str, options: &str, known: Known<'_>) -> Result<Vec<f32>, DatasetError> {
    let (_directory, spec) = file(text, options);
    Dataset::inputs(&spec, known).map(|samples| all(&samples).0)
}

/// Returns fifty rows, each with its number and a label made from it.
fn numbered(label: impl Fn(u32) -> u32) -> String {
    let rows: Vec<String> = (0..50).map(|row| format!("{row},{}", label(row))).collect();
    rows.join("\n")
}

/// Returns all inputs and labels of some samples.
pub(super) fn all(samples: &Samples) -> (Vec<f32>, Vec<u32>) {
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    let indices: Vec<u32> = (0..samples.len() as u32).collect();
    samples.gather(&indices, &mut inputs, &mut answers);
    (inputs, answers.labels().to_vec())
}

#[track_caller]
pub(super) fn assert_refused<T: std::fmt::Debug>(result: Result<T, DatasetError>, part: &str) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains(part), "'{part}' is not in: {message}");
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn a_file_with_a_header_is_split_and_standardised() {
    let dataset = open(IRIS, "?label=kind&test=0.4").unwrap();
    assert_eq!(dataset.input, Shape::Flat(2));
    assert_eq!(dataset.target.classes(), ["iris", "lily", "rose"]);
    assert_eq!((dataset.train.len(), dataset.test.len()), (3, 2));
    let (inputs, _) = all(&dataset.train);
    for column in 0..2 {
        let values = || inputs.iter().skip(column).step_by(2);
        assert!(values().sum::<f32>().abs() < 1e-6);
        assert!((values().map(|v| v * v).sum::<f32>() - 3.0).abs() < 1e-5);
    }
}

#[test]
fn samples_keep_their_labels_through_the_split() {
    // The label of a row follows from its number, also after scaling, which keeps the order.
    let rows = numbered(|row| row / 10);
    let dataset = open(&rows, "").unwrap();
    let (Scaling::Standard { mean, deviation }, (inputs, labels)) = (&dataset.scaling, all(&dataset.train)) else {
        panic!("the columns must be standardised");
    };
    for (input, label) in inputs.iter().zip(labels) {
        let row = (input * deviation[0] + mean[0]).round() as u32;
        assert_eq!(row / 10, label);
    }
    assert_eq!((dataset.train.len(), dataset.test.len()), (40, 10));
}

#[test]
fn the_seed_decides_the_split() {
    let rows = numbered(|row| row % 2);
    let (_directory, spec) = file(rows, "");
    let hash = |seed| Dataset::open(&spec, seed, None).unwrap().hash;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn the_label_column_is_found_by_name_and_from_both_ends() {
    let by_name = open("1,b,3\n4,5,6\n", "?label=b");
    assert_refused(by_name, "leaves none of its samples (1)");
    let text = "a,b,c\n1,x,2\n3,y,4\n5,x,6\n";
    let hash = open(text, "?label=b").unwrap().hash;
    assert_eq!(open(text, "?label=1").unwrap().hash, hash);
    assert_eq!(open(text, "?label=-2").unwrap().hash, hash);
}

#[test]
fn a_header_is_known_by_its_text() {
    // The label of the first row is text in both cases; only the other cells decide.
    assert_eq!(open("1,2,x\n3,4,y\n", "").unwrap().target.classes(), ["x", "y"]);
    assert_eq!(
        open("1,b,kind\n3,4,y\n1,2,x\n", "").unwrap().target.classes(),
        ["x", "y"]
    );
}

#[test]
fn classes_are_sorted_as_numbers_or_as_text() {
    assert_eq!(
        open("1,10\n1,9\n1,-1\n", "").unwrap().target.classes(),
        ["-1", "9", "10"]
    );
    assert_eq!(open("1,10\n1,9\n1,b\n", "").unwrap().target.classes(), ["10", "9", "b"]);
}

#[test]
fn quotes_spaces_windows_lines_and_a_byte_order_mark_change_nothing() {
    let plain = open(IRIS, "?label=kind").unwrap().hash;
    let text = IRIS.replace('\n', "\r\n").replace("lily", "\"lily\"");
    let text = format!("\u{feff}{}", text.replace("rose", " rose "));
    assert_eq!(open(text, "?label=kind").unwrap().hash, plain);
}

#[test]
fn wrong_cells_are_named_by_line_and_column() {
    for (text, message) in [
        (
            "a,b,k\n1,2,x\n1,abc,y\n",
            "line 3: column b holds 'abc', which is not a number",
        ),
        ("1,2,x\n1,,y\n", "line 2: column 1 holds '', so its number is missing"),
        (
            "1,2,x\n1,NA,y\n",
            "line 2: column 1 holds 'NA', so its number is missing",
        ),
        (
            "1;2;x\n1;2,5;y\n",
            "line 2: column 1 holds '2,5', which is not a number: write numbers with a decimal point",
        ),
        ("1,inf,x\n", "line 1: column 1 holds 'inf'"),
        ("1,2,x\n1,1e39,x\n", "line 2: column 1 holds '1e39'"),
        ("1,2,x\n1,2,\n", "line 2 has no label"),
        ("a,b,c,d,k\n1,2,x\n", "line 2 has 3 columns, but line 1 has 5"),
        ("1,x\n1,2,x\n", "line 2 has 3 columns, but line 1 has 2"),
    ] {
        assert_refused(open(text, ""), &format!("data.csv {message}"));
        assert_refused(open(text.replace('\n', "\r\n"), ""), &format!("data.csv {message}"));
    }
    assert_refused(open(b"1,2,x\n1,2,\xff\n", ""), "line 2 is not UTF-8");
}

#[test]
fn lines_are_counted_as_an_editor_does() {
    for text in [
        "1,2,x\n\n\n1,abc,y\n",
        "1,2,x\r\n\r\n \r\n1,abc,y\r\n",
        "1,2,\"x\ny\nz\"\n1,abc,y",
        "\n\n1,2,x\n1,abc,\"\ny\"",
        "\u{feff}1,2,x\n\n\n1,abc,y",
    ] {
        assert_refused(open(text, ""), "line 4: column 1 holds 'abc'");
    }
}

#[test]
fn files_with_nothing_to_learn_are_refused() {
    for (text, options, message) in [
        ("", "", "is empty"),
        ("\n\n", "", "is empty"),
        ("a,b\n", "", "has a header but no samples"),
        ("1\n2\n", "", "too few columns"),
        ("1 2\n3 4\n", "", "with sep="),
        ("1,x\n2,x\n", "", "has the label 'x'"),
        ("1,x\n2,y\n", "?test=1", "leaves none of its samples (2) to train on"),
        ("1,x\n", "", "leaves none of its samples (1)"),
        (
            IRIS,
            "?label=color",
            "no label column 'color': choose one of width, length, kind",
        ),
        (
            IRIS,
            "?label=3",
            "no label column '3': choose one of width, length, kind",
        ),
        ("1,2\n", "?label=-3", "no label column '-3': choose one of 0, 1"),
        ("1,2\n", "?label=-9223372036854775808", "choose one of 0, 1"),
    ] {
        assert_refused(open(text, options), message);
    }
    let gone = DataSpec::Idx {
        directory: "no-such-directory".into(),
    };
    assert_refused(Dataset::open(&gone, 0, None), "holds none of");
    let gone = "csv:no-such-file.csv".parse().unwrap();
    assert_refused(Dataset::open(&gone, 0, None), "no-such-file.csv could not be read");
}

#[test]
fn paths_start_at_the_data_root() {
    let (directory, _) = file(IRIS, "");
    let inside = "csv:data.csv".parse().unwrap();
    assert!(Dataset::open(&inside, 7, Some(directory.path())).is_ok());
    let other = tempfile::tempdir().unwrap();
    let outside = format!("csv:{}", directory.path().join("data.csv").display());
    let refused = Dataset::open(&outside.parse().unwrap(), 7, Some(other.path()));
    assert_refused(refused, "outside of the data directory");
}

#[test]
fn a_model_sees_the_inputs_it_was_trained_on() {
    let trained = open(IRIS, "").unwrap();
    let again = open_for(IRIS, "", trained.known()).unwrap();
    assert_eq!(again.hash, trained.hash);
    assert_eq!(again.scaling, trained.scaling);
}

#[test]
fn a_model_keeps_its_scaling_and_classes_on_new_data() {
    let scaling = Scaling::Standard {
        mean: vec![1.0, 10.0],
        deviation: vec![2.0, 5.0],
    };
    let classes = Target::Classes(owned(&["rose", "lily", "iris"]));
    // All samples are test samples, and they may all be of one class.
    let dataset = open_for("5,20,lily\n", "?test=1", nameless(&scaling, &classes)).unwrap();
    assert!(dataset.train.is_empty());
    assert_eq!(all(&dataset.test), (vec![2.0, 2.0], vec![1]));
    assert_eq!(dataset.target, classes);

    let unknown = open_for("5,20,lily\n1,2,tulip\n", "", nameless(&scaling, &classes));
    assert_refused(
        unknown,
        "line 2 has the label 'tulip', but the training data has only the classes rose, lily",
    );
    let wide = open_for("5,20,30,lily\n", "", nameless(&scaling, &classes));
    assert_refused(wide, "3 columns beside the label, but the model was trained on 2");
    let images = open_for("5,20,lily\n", "", nameless(&Scaling::Unit, &classes));
    assert_refused(images, "trained on images");
}

#[test]
fn a_number_beyond_all_measure_is_refused() {
    let scaling = Scaling::Standard {
        mean: vec![0.0],
        deviation: vec![1e-40],
    };
    let target = Target::Classes(owned(&["lily"]));
    let known = Known {
        input: Shape::Flat(1),
        ..nameless(&scaling, &target)
    };
    let far = open_for("3e38,lily\n", "?test=1", known);
    assert_refused(far, "not finite after scaling");
}

#[test]
fn a_model_finds_its_columns_by_their_names() {
    let trained = open(IRIS, "").unwrap();
    let names = trained.columns.clone().unwrap();
    assert_eq!(
        (names.features.clone(), names.labels.clone()),
        (owned(&["width", "length"]), owned(&["kind"]))
    );
    // Columns in another order, and one that the model does not know.
    let moved = "kind,id,length,width\nlily,a,10,1\nrose,b,20,2\n";
    let straight = "width,length,kind\n1,10,lily\n2,20,rose\n";
    let (one, other) = (
        open_for(moved, "?test=1", trained.known()).unwrap(),
        open_for(straight, "?test=1", trained.known()).unwrap(),
    );
    assert_eq!(all(&one.test), all(&other.test));
    let lacking = open_for("width,kind\n1,lily\n", "?test=1", trained.known());
    assert_refused(
        lacking,
        "no column 'length', which the model was trained on; it has width, kind",
    );
}

#[test]
fn samples_without_labels_are_read_for_a_model_in_their_order() {
    let trained = open(IRIS, "").unwrap();
    let known = trained.known();
    let expected = inputs(IRIS, "", known).unwrap();
    assert_eq!(expected.len(), 10);
    let plain = IRIS
        .replace(",kind", "")
        .replace(",lily", "")
        .replace(",rose", "")
        .replace(",iris", "");
    assert_eq!(
        inputs(&plain, "", known).unwrap(),
        expected,
        "with names, without labels"
    );
    let bare = plain.replace("width,length\n", "");
    assert_eq!(inputs(&bare, "", known).unwrap(), expected, "without names or labels");
    let labelled = IRIS.replace("width,length,kind\n", "");
    assert_eq!(inputs(&labelled, "", known).unwrap(), expected, "without names");
    assert_eq!(inputs(&labelled, "?label=2", known).unwrap(), expected);
    assert_refused(inputs("1,2,3,4\n", "", known), "3 columns beside");
}

#[test]
fn columns_of_one_name_are_known_by_their_places() {
    let twins = "width,width,kind\n1,10,lily\n2,20,rose\n3,30,lily\n4,40,iris\n5,50,rose\n";
    assert_eq!(open(twins, "").unwrap().columns, None);
}

/// Returns a table of three columns: a number, and two that are computed from it.
fn priced() -> String {
    let rows = (0..100).map(|row| format!("{row},{},{}", 2 * row + 1, f64::from(row) / 8.0));
    format!("size,rooms,price\n{}\n", rows.collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_label_of_many_numbers_is_a_number_to_predict() {
    let dataset = open(priced(), "").unwrap();
    let [price] = dataset.target.numbers() else {
        panic!("the target must be one number: {:?}", dataset.target);
    };
    assert_eq!(price.name, "price");
    assert!(
        dataset.remarks[0].contains("price is taken as a number to predict: use target=class"),
        "{:?}",
        dataset.remarks
    );
    assert!(dataset.train.labels().is_empty());
    // The price is an eighth of the size: both are restored from their standardised values.
    let Scaling::Standard { mean, deviation } = &dataset.scaling else {
        panic!("the columns must be standardised");
    };
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    for part in [&dataset.train, &dataset.test] {
        let all: Vec<u32> = (0..part.len() as u32).collect();
        part.gather(&all, &mut inputs, &mut answers);
        for (input, &answer) in inputs.chunks_exact(2).zip(answers.numbers()) {
            let size = input[0] * deviation[0] + mean[0];
            assert!((price.restore(answer) - size / 8.0).abs() < 1e-4);
        }
    }
    let values: f32 = dataset.train.answers().numbers().iter().sum();
    assert!(
        values.abs() < 1e-4,
        "the labels must be standardised by the training rows: {values}"
    );

    let classes = open(priced(), "?target=class").unwrap();
    assert_eq!(classes.target.classes().len(), 100);
    assert!(classes.remarks.is_empty());
    let few = open(numbered(|row| row % 5), "?target=number").unwrap();
    assert_eq!(few.target.outputs(), 1);
    let told = open(numbered(|row| row % 5), "").unwrap();
    assert!(
        told.remarks[0].contains("one of 5 classes: use target=number"),
        "{:?}",
        told.remarks
    );
}

#[test]
fn several_labels_are_several_numbers() {
    let dataset = open(priced(), "?label=price,rooms").unwrap();
    assert_eq!(dataset.input, Shape::Flat(1));
    let names: Vec<&str> = dataset
        .target
        .numbers()
        .iter()
        .map(|number| number.name.as_str())
        .collect();
    assert_eq!(names, ["price", "rooms"]);
    assert_eq!(dataset.train.answers().numbers().len(), 2 * dataset.train.len());
    // A model finds both columns by name, and standardises them by its own means and deviations.
    let moved = "rooms,size,price\n201,100,12.5\n";
    let again = open_for(moved, "?test=1", dataset.known()).unwrap();
    let restored: Vec<f32> = dataset
        .target
        .numbers()
        .iter()
        .zip(again.test.answers().numbers())
        .map(|(number, &said)| number.restore(said))
        .collect();
    assert!(
        (restored[0] - 12.5).abs() < 1e-4 && (restored[1] - 201.0).abs() < 1e-3,
        "{restored:?}"
    );
    let fewer = open_for(
        "rooms,size,price\n201,100,12.5\n",
        "?test=1&label=price",
        dataset.known(),
    );
    assert_refused(fewer, "1 columns of numbers to predict, but the model predicts 2");
    assert_refused(
        open("a,b,c\n1,x,2\n3,4,5\n", "?label=a,b"),
        "line 2: label column b holds 'x'",
    );
    assert_refused(open("a,b\n1,2\n3,5\n", "?label=a,b"), "too few columns");
}
