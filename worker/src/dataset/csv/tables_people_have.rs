//! Tests of tables as users have them: other separators, compressed, with gaps, with texts, in two files, and large.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use protocol::job::data::DataSpec;

use super::tests::{all, assert_refused, file, inputs, open, open_for};
use super::*;

const SHOP: &str =
    "colour,size,shop,sold\nred,1,north,yes\nblue,2,south,no\nred,3,east,yes\n,4,west,no\nblue,5,north,no\n";

#[test]
fn separators_are_found_and_files_unpacked() {
    let text = "a,b,k\n1,10,x\n2,20,y\n3,30,x\n";
    let hash = open(text, "").unwrap().hash;
    for separator in [";", "\t", "|"] {
        assert_eq!(
            open(text.replace(',', separator), "").unwrap().hash,
            hash,
            "{separator}"
        );
    }
    assert_eq!(open(text.replace(',', ";"), "?sep=semicolon").unwrap().hash, hash);
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(text.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(open(&packed, "").unwrap().hash, hash);
    assert_refused(open(&packed[..packed.len() - 9], ""), "could not be read");
}

#[test]
fn files_of_other_kinds_are_named() {
    for (bytes, says) in [
        (
            &b"PAR1\x15\x04"[..],
            "is a Parquet file, not a table of text: write parquet:FILE",
        ),
        (b"\x89PNG\r\n\x1a\n", "is an image"),
        (b"\x93NUMPY\x01\0", "is a NumPy array"),
        (b"PK\x03\x04", "is a ZIP archive"),
    ] {
        assert_refused(open(bytes, ""), says);
    }
}

#[test]
fn missing_numbers_are_filled_as_was_said_and_as_the_model_knows() {
    let text = "a,b,k\n1,10,x\n,20,y\n3,NA,x\n2,30,y\n";
    assert_refused(
        open(text, ""),
        "cannot be used as they are:\n  a (line 3: ''): missing numbers: missing=mean\n  b (line 4: 'NA'): missing \
         numbers: missing=mean",
    );
    let mean = open(text, "?missing=mean&test=0.01").unwrap();
    assert!(
        matches!(mean.encodings[..], [Encoding::Number { fill: Some(_) }, _]),
        "{:?}",
        mean.encodings
    );
    // The value that replaces a missing number is 0 after scaling.
    let made = inputs("a,b\n?,20\n", "", mean.known()).unwrap();
    assert!(made[0].abs() < 0.3, "{made:?}");
    let zero = open(text, "?missing=zero").unwrap();
    assert_eq!(zero.encodings[0], Encoding::Number { fill: Some(0.0) });
    // A model trained without missing numbers needs an option that says what to do with them.
    let whole = open("a,b,k\n1,10,x\n2,20,y\n3,30,x\n2,40,y\n", "").unwrap();
    assert_refused(inputs("a,b\n,20\n", "", whole.known()), "its number is missing");
    assert!(inputs("a,b\n,20\n", "?missing=mean", whole.known()).unwrap()[0].abs() < 1e-6);
}

#[test]
fn texts_need_a_rule_and_become_inputs() {
    assert_refused(
        open(SHOP, ""),
        "cannot be used as they are:\n  colour (line 2: 'red'): texts: onehot=colour\n  shop (line 2: 'north'): \
         texts: onehot=shop\n",
    );
    assert_refused(
        open(SHOP, "?drop=shop"),
        "line 2: column colour holds 'red', which is not a number: use onehot=colour, hash=colour:32 or drop=colour",
    );
    let shop = open(SHOP, "?onehot=colour&hash=shop:4&test=0.01").unwrap();
    let Some(Encoding::OneHot { categories }) = shop.encodings.first() else {
        panic!("the colours must be one-hot categories: {:?}", shop.encodings);
    };
    assert_eq!(shop.input, Shape::Flat(categories.len() + 1 + 4));
    assert_eq!(shop.columns.as_ref().unwrap().features, ["colour", "size", "shop"]);
    // One rule for all columns that hold texts.
    let all_texts = open(SHOP, "?text=onehot&test=0.01").unwrap();
    assert!(
        all_texts
            .encodings
            .iter()
            .filter(|one| matches!(one, Encoding::OneHot { .. }))
            .count()
            == 2
    );
    assert_eq!(open(SHOP, "?text=drop").unwrap().input, Shape::Flat(1));
    assert_eq!(open(SHOP, "?drop=colour,shop").unwrap().input, Shape::Flat(1));
    assert_eq!(open(SHOP, "?text=hash:4&drop=shop").unwrap().input, Shape::Flat(5));
    // Without a header, columns are named by their positions.
    let bare = SHOP.split_once('\n').unwrap().1;
    let placed = open(bare, "?onehot=0&hash=2:4&test=0.01").unwrap();
    assert_eq!((placed.input, placed.columns), (shop.input, None));
    assert_eq!(
        open(bare, "?text=onehot").unwrap().input,
        open(SHOP, "?text=onehot").unwrap().input
    );
    assert_refused(open(SHOP, "?text=drop&drop=size"), "has no column left to learn from");
    assert_refused(
        open(SHOP, "?drop=price"),
        "no column 'price', which drop= names: choose one of colour, size",
    );
}

#[test]
fn dates_become_numbers() {
    let rows: Vec<String> = (1..=28)
        .map(|day| format!("2024-02-{day:02},{day},{}", day % 2))
        .collect();
    let text = format!("when,n,k\n{}\n", rows.join("\n"));
    let dated = open(&text, "?date=when").unwrap();
    assert_eq!(dated.input, Shape::Flat(5 + 1));
    let [
        Encoding::Date {
            fill: None,
            time: false,
        },
        _,
    ] = dated.encodings[..]
    else {
        panic!("the dates must be days without times: {:?}", dated.encodings);
    };
    // The days are as far apart as the numbers beside them.
    let (made, _) = all(&dated.train);
    assert!(
        made.chunks_exact(6).all(|row| (row[0] - row[5]).abs() < 1e-3),
        "{made:?}"
    );
    let again = open_for(&text, "?date=when", dated.known()).unwrap();
    assert_eq!(again.hash, dated.hash);
    // A model finds its dates by name, and refuses cells that are not dates.
    let asked = |cell: &str, options: &str| inputs(&format!("n,when\n3,{cell}\n"), options, dated.known());
    assert_eq!(
        asked("2024-02-03", "").unwrap(),
        asked("2024-02-03T00:00:00Z", "").unwrap()
    );
    assert_refused(
        asked("3.2.2024", ""),
        "line 2: column when holds '3.2.2024', which is not a date: write dates as",
    );
    assert_refused(asked("", ""), "column when holds '', so its number is missing");
    assert!(asked("", "?missing=mean").unwrap()[0].abs() < 1e-3);
    // Times of day add inputs.
    let timed = open(text.replacen("02-07,", "02-07 13:30,", 1), "?date=when&test=0.01").unwrap();
    assert_eq!(timed.input, Shape::Flat(7 + 1));
    assert_refused(open(&text, "?date=when,n"), "column n holds '1', which is not a date");
}

#[test]
fn words_become_inputs_of_one_scale() {
    let reviews = [
        "Good, good film",
        "bad film",
        "a good one",
        "so bad it is good",
        "bad, bad, bad",
    ];
    let rows = (0..50).map(|row| format!("\"{}\",{},{}", reviews[row % 5], row, row % 2));
    let text = format!("review,n,k\n{}\n", rows.collect::<Vec<_>>().join("\n"));
    let read = open(&text, "?words=review:64").unwrap();
    assert_eq!(read.input, Shape::Flat(64 + 1));
    assert_eq!(read.encodings[0], Encoding::Words { inputs: 64 });
    let Scaling::Standard { mean, deviation } = &read.scaling else {
        panic!("the columns must be standardised");
    };
    assert!(mean[..64].iter().all(|&mean| mean == 0.0) && mean[64] > 0.0);
    assert!(deviation[..64].iter().all(|&one| one == deviation[0]));
    // After division by the common deviation, the mean square over the training rows is 1.
    let (made, _) = all(&read.train);
    let rows = made.chunks_exact(65);
    let squares: f32 = rows.clone().flat_map(|row| &row[..64]).map(|value| value * value).sum();
    assert!((squares / (64 * rows.len()) as f32 - 1.0).abs() < 1e-4, "{squares}");
    let again = open_for(&text, "?words=review:64", read.known()).unwrap();
    assert_eq!(again.hash, read.hash);
    let asked = |text: &str| inputs(&format!("n,review\n3,\"{text}\"\n"), "", read.known()).unwrap();
    assert_eq!(asked("bad, good FILM"), asked("film bad (good)"));
    assert_ne!(asked("bad"), asked("good"));
}

#[test]
fn a_model_makes_the_same_of_texts_by_name() {
    let shop = open(SHOP, "?onehot=colour&hash=shop:4&test=0.2").unwrap();
    let again = open_for(SHOP, "?onehot=colour&hash=shop:4&test=0.2", shop.known()).unwrap();
    assert_eq!(again.hash, shop.hash);
    let moved = "shop,id,size,colour\nnorth,7,1,red\n";
    let straight = "colour,size,shop\nred,1,north\n";
    assert_eq!(
        inputs(moved, "", shop.known()).unwrap(),
        inputs(straight, "", shop.known()).unwrap()
    );
    // A category that did not occur in training sets no input.
    let width = shop.encodings[0].width();
    let unknown = inputs("colour,size,shop\npink,1,north\n", "", shop.known()).unwrap();
    let Scaling::Standard { mean, deviation } = &shop.scaling else {
        panic!("the columns must be standardised");
    };
    for place in 0..width {
        let stored = unknown[place] * deviation[place] + mean[place];
        assert!(stored.abs() < 1e-6, "{stored}");
    }
}

#[test]
fn a_file_without_a_models_columns_is_told_by_their_names() {
    let shop = open(SHOP, "?onehot=colour&hash=shop:4&test=0.2").unwrap();
    let says = "has no columns colour, size, shop, which the model was trained on; it has width, length, kind";
    let other = "width,length,kind\n1,2,lily\n";
    assert_refused(inputs(other, "", shop.known()), says);
    assert_refused(open_for(other, "?test=1&label=kind", shop.known()), says);
    assert_refused(
        inputs("colour,shop\nred,north\n", "", shop.known()),
        "has no column 'size', which the model was trained on; it has colour, shop",
    );
    // Without names, columns are taken by position, and a text in a number column is an error of the model's inputs.
    assert!(inputs("red,1,north\n", "", shop.known()).is_ok());
    assert_refused(
        inputs("red,1,north\nred,large,north\n", "", shop.known()),
        "line 2: column 1 holds 'large', which is not a number: the model takes numbers in this column; correct the \
         cell",
    );
}

#[test]
fn decimal_commas_are_no_texts() {
    for (count, options) in [
        (40, "?text=onehot"),
        (40, "?onehot=temp"),
        (40, "?text=hash"),
        (1500, "?onehot=temp"),
    ] {
        let rows = (0..count).map(|row| format!("{row};{},{};{}", row / 10, row % 10, row % 2));
        let text = format!("n;temp;k\n{}\n", rows.collect::<Vec<_>>().join("\n"));
        let message = "line 2: column temp holds '0,0', which is not a number: write numbers with a decimal point";
        assert_refused(open(&text, options), message);
    }
    // A few decimal commas among other texts count as texts.
    assert!(open("n;size;k\n1;large;x\n2;small;y\n3;1,5;x\n4;small;y\n", "?onehot=size").is_ok());
}

#[test]
fn all_columns_that_need_a_rule_are_told_at_once() {
    let plans = ["basic", "plus", "pro"];
    let rows = (0..60).map(|row| {
        let age = if row == 7 {
            String::new()
        } else {
            (20 + row).to_string()
        };
        let note = format!("customer {row} said that all is well");
        format!(
            "C{row:05},{},{age},2024-01-{:02},{note},{}",
            plans[row % 3],
            1 + row % 28,
            row % 2
        )
    });
    let text = format!(
        "customer,plan,age,since,\"a, b\",left\n{}\n",
        rows.collect::<Vec<_>>().join("\n")
    );
    let (_folder, spec) = file(&text, "?missing=error");
    let message = Dataset::open(&spec, 7, None).unwrap_err().to_string();
    for part in [
        "has columns that cannot be used as they are:\n  customer (line 2: 'C00000'): a different text in every row: \
         drop=customer\n",
        "  plan (line 2: 'basic'): texts: onehot=plan\n",
        "  age (line 9: ''): missing numbers: missing=mean\n",
        "  since (line 2: '2024-01-01'): dates: date=since\n",
        "  a, b (line 2: 'customer 0 said that all…'): longer texts: words=4\n",
    ] {
        assert!(message.contains(part), "'{part}' is not in {message}");
    }
    // The suggested data spec can be read.
    let (_, instead) = message.rsplit_once("give the data as '").unwrap();
    let instead: DataSpec = instead.trim_end_matches('\'').parse().unwrap();
    let options = "?label=left&test=0.2&missing=mean&onehot=plan&date=since&drop=customer&words=4:4096";
    assert!(instead.to_string().ends_with(options), "{instead}");
    let read = Dataset::open(&instead, 7, None).unwrap();
    assert_eq!(read.input, Shape::Flat(3 + 1 + 5 + 4096));
    // A single problem is reported in a sentence of its own.
    for (options, says) in [
        (
            "&onehot=plan&date=since&words=4&missing=mean",
            "no two rows have the same text: use drop=customer",
        ),
        (
            "&onehot=plan&drop=customer&words=4&missing=mean",
            "use date=since to turn its dates into numbers",
        ),
        (
            "&onehot=plan&drop=customer,since&missing=mean",
            "use words=4 to turn its words into inputs",
        ),
        (
            "&onehot=plan&drop=customer,since,4",
            "line 9: column age holds '', so its number is missing",
        ),
    ] {
        assert_refused(open(&text, &format!("?label=left{options}")), says);
    }
}

#[test]
fn too_many_categories_are_refused() {
    let rows: Vec<String> = (0..1500).map(|row| format!("name{row},1,{}", row % 2)).collect();
    let text = format!("name,n,k\n{}\n", rows.join("\n"));
    assert_refused(
        open(&text, "?onehot=name"),
        "more than 1000 different texts in column name",
    );
    assert!(open(&text, "?hash=name").is_ok());
}

#[test]
fn another_file_can_be_tested_on() {
    let (folder, _) = file("width,kind\n1,a\n2,b\n3,a\n", "");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("more.csv"), "kind,width\nb,2\na,5\n").unwrap();
    let spec = |test: &str| -> DataSpec {
        format!("csv:{}?label=kind&testfile={}", path("data.csv"), path(test))
            .parse()
            .unwrap()
    };
    let dataset = Dataset::open(&spec("more.csv"), 7, None).unwrap();
    assert_eq!((dataset.train.len(), dataset.test.len()), (3, 2));
    assert_eq!(all(&dataset.train).1, [0, 1, 0]);
    let (tested, labels) = all(&dataset.test);
    assert_eq!(labels, [1, 0]);
    assert_eq!(
        tested[0],
        all(&dataset.train).0[1],
        "the training rows must decide the scaling"
    );
    let measured = Dataset::open_for(&spec("more.csv"), 7, None, dataset.known()).unwrap();
    assert_eq!(measured.test, dataset.test);
    fs::write(path("strange.csv"), "kind,width\nc,2\n").unwrap();
    assert_refused(
        Dataset::open(&spec("strange.csv"), 7, None),
        "label 'c', but the training data has only the classes a, b",
    );
    assert_refused(Dataset::open(&spec("none.csv"), 7, None), "none.csv could not be read");
    let confined = Dataset::open(&spec("more.csv"), 7, Some(folder.path()));
    assert_eq!(confined.unwrap().hash, dataset.hash);
}

#[test]
fn data_in_a_scratch_file_is_the_same_to_the_bit() {
    let rows: Vec<String> = (0..3000u32)
        .map(|row| format!("{},{},c{},{}", row % 17, f64::from(row) * 0.37, row % 5, row % 3))
        .collect();
    let text = format!("a,b,c,k\n{}\n", rows.join("\n"));
    let (folder, spec) = file(&text, "?onehot=c");
    let DataSpec::Csv { file, table, .. } = &spec else {
        panic!("the data must be a CSV table");
    };
    let opened = |bytes_max| {
        let source = Source {
            bytes_max,
            ..Source::new(file, Form::Text(None), &|_| {})
        };
        super::open(source, None, table, 7, None).unwrap()
    };
    let (scratch, memory) = (opened(1000), opened(u64::MAX));
    assert_eq!(scratch.hash, memory.hash);
    assert_eq!(scratch.scaling, memory.scaling);
    assert_eq!(all(&scratch.train), all(&memory.train));
    assert_eq!(all(&scratch.test), all(&memory.test));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "the scratch file must not be left beside the data"
    );
}
