//! Tests of data texts, valid and invalid.

use super::*;
use proptest::prelude::*;

fn csv(label: Column, test_fraction: f64) -> DataSpec {
    table(TableOptions {
        label: vec![label],
        test_split: TestSplit::Share(test_fraction),
        ..TableOptions::default()
    })
}

fn table(table: TableOptions) -> DataSpec {
    DataSpec::Csv {
        file: "iris.csv".into(),
        separator: None,
        table,
    }
}

#[test]
fn every_form_is_read() {
    let named = |name: &str| Column::Name(name.to_owned());
    for (text, expected) in [
        ("builtin:mnist", DataSpec::BuiltinMnist),
        ("module", DataSpec::Module),
        (
            "idx:some/dir",
            DataSpec::Idx {
                directory: "some/dir".into(),
            },
        ),
        ("csv:iris.csv", csv(Column::Position(-1), 0.2)),
        ("csv:iris.csv?label=kind", csv(named("kind"), 0.2)),
        ("csv:iris.csv?label=ill?", csv(named("ill?"), 0.2)),
        ("csv:iris.csv?label=a=b", csv(named("a=b"), 0.2)),
        ("csv:iris.csv?label=0", csv(Column::Position(0), 0.2)),
        ("csv:iris.csv?test=1", csv(Column::LAST, 1.0)),
        ("csv:iris.csv?test=0.5&label=kind", csv(named("kind"), 0.5)),
        ("csv:iris.csv?label=-2&test=1e-3", csv(Column::Position(-2), 0.001)),
        (
            "csv:iris.csv?label=a, 1&target=number",
            table(TableOptions {
                label: vec![named("a"), Column::Position(1)],
                target: Some(TargetKind::Number),
                ..TableOptions::default()
            }),
        ),
        (
            "csv:iris.csv?sep=;&testfile=more.csv&missing=mean&text=hash:8&onehot=c&hash=d,e:f:16&drop=0,id",
            DataSpec::Csv {
                file: "iris.csv".into(),
                separator: Some(Separator::Semicolon),
                table: TableOptions {
                    test_split: TestSplit::File("more.csv".into()),
                    missing: Missing::Mean,
                    text: Some(TextRule::Hash(8)),
                    onehot: vec![named("c")],
                    hash: vec![(named("d"), 32), (named("e:f"), 16)],
                    drop: vec![Column::Position(0), named("id")],
                    ..TableOptions::default()
                },
            },
        ),
    ] {
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
}

#[test]
fn what_cannot_be_read_says_what_to_write() {
    for (text, hint) in [
        ("", "write builtin:mnist, csv:FILE"),
        ("mnist", "write builtin:mnist, csv:FILE"),
        ("http://x", "'http://x' is not a data source"),
        ("iris.csv", "write csv:iris.csv"),
        ("a/b.csv.gz?label=k", "write csv:a/b.csv.gz?label=k"),
        ("x.parquet", "write parquet:x.parquet"),
        ("x.npz", "write npz:x.npz"),
        ("x.npy", "write npz:FILE with a file that numpy.savez"),
        ("csv:-", "'csv:-' is a pipe"),
        ("csv:-?label=a", "save the data to a file, and write csv:FILE"),
        ("builtin:cifar", "no dataset 'cifar'"),
        ("idx:", "write idx:DIR"),
        ("csv:", "write csv:FILE"),
        ("csv:?label=1", "write csv:FILE"),
        ("parquet:", "write parquet:FILE"),
        ("npz:", "write npz:FILE"),
        ("images:", "write images:DIR"),
        ("cifar:", "write cifar:DIR"),
        ("npz:f?size=3x3", "'size=3x3' is not an option of npz"),
        ("parquet:f?sep=;", "'sep=;' is not an option of a table"),
        ("images:f?label=a", "'label=a' is not an option of images"),
        ("images:f?size=32x", "such as size=32x32"),
        ("images:f?size=0x5", "such as size=32x32"),
        ("images:f?colour=red", "colour=grey or colour=rgb"),
        ("csv:f?", "write label="),
        ("csv:f?lable=x", "'lable=x' is not an option"),
        ("csv:f?label=R&D", "by its position"),
        ("csv:f?label= ", "such as label=kind"),
        ("csv:f?label=a,", "such as label=kind"),
        ("csv:f?test=0.1&testfile=g", "test= and testfile= are both given"),
        ("csv:f?testfile=g&test=0.1", "test= and testfile= are both given"),
        ("csv:f?testfile=", "write testfile=FILE"),
        ("csv:f?sep=x", "write sep=comma"),
        ("csv:f?missing=median", "write missing=mean"),
        ("csv:f?text=embed", "write text=onehot"),
        ("csv:f?text=hash:1", "a whole number from 2"),
        ("csv:f?hash=a:b", "such as hash=colour:32"),
        ("csv:f?onehot=a&drop=b,a", "column 'a' is named twice"),
        ("csv:f?target=text", "target=class or target=number"),
        ("csv:f?label=a,b&target=class", "several label columns"),
        ("csv:f?test=0.1&test=0.2", "'test=0.2' is given twice"),
        ("csv:f?test=0", "test=0 is not a share"),
        ("csv:f?test=1.1", "above 0 and at most 1"),
        ("csv:f?test=NaN", "above 0 and at most 1"),
        ("csv:f?test=", "above 0 and at most 1"),
    ] {
        let error = text.parse::<DataSpec>().unwrap_err().to_string();
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn serde_uses_the_text() {
    let json = serde_json::to_string(&DataSpec::BuiltinMnist).unwrap();
    assert_eq!(json, "\"builtin:mnist\"");
    let read: DataSpec = serde_json::from_str("\"csv:iris.csv?label=kind\"").unwrap();
    assert_eq!(read, csv(Column::Name("kind".into()), 0.2));
    assert!(serde_json::from_str::<DataSpec>("\"tape:7\"").is_err());
}

fn any_column() -> impl Strategy<Value = Column> {
    prop_oneof![
        any::<i64>().prop_map(Column::Position),
        "[^&,:]+"
            .prop_filter(
                "a blank name, or a name that is a number, is not read as a name",
                |name| { name.trim() == name && !name.is_empty() && name.parse::<i64>().is_err() }
            )
            .prop_map(Column::Name),
    ]
}

fn any_table() -> impl Strategy<Value = TableOptions> {
    let columns = |least| prop::collection::btree_set(any_column(), least..5).prop_map(Vec::from_iter);
    let test_split = prop_oneof![
        (0.0..1.0).prop_map(|share| TestSplit::Share(1.0 - share)),
        "[^&]+".prop_map(|file| TestSplit::File(file.into())),
    ];
    let target = prop_oneof![
        Just(None),
        Just(Some(TargetKind::Class)),
        Just(Some(TargetKind::Number))
    ];
    let missing = prop_oneof![Just(Missing::Error), Just(Missing::Mean), Just(Missing::Zero)];
    let text = prop_oneof![
        Just(None),
        Just(Some(TextRule::OneHot)),
        (2..=65_536u32).prop_map(|count| Some(TextRule::Hash(count))),
        Just(Some(TextRule::Drop)),
    ];
    let others = (columns(0), columns(0), columns(0), columns(0), columns(0));
    (columns(1), test_split, target, missing, text, others, 2..=65_536u32).prop_filter_map(
        "a column may have only one rule",
        |(label, test_split, target, missing, text, (onehot, hash, words, date, drop), buckets)| {
            let options = TableOptions {
                target: target.filter(|&target| target == TargetKind::Number || label.len() == 1),
                label,
                test_split,
                missing,
                text,
                onehot,
                hash: hash.into_iter().map(|column| (column, buckets)).collect(),
                words: words.into_iter().map(|column| (column, buckets)).collect(),
                date,
                drop,
            };
            options.check().ok()
        },
    )
}

fn any_separator() -> impl Strategy<Value = Option<Separator>> {
    prop_oneof![Just(None), prop::sample::select(&Separator::ALL[..]).prop_map(Some)]
}

fn any_share() -> impl Strategy<Value = Option<f64>> {
    prop::option::of((0.0..1.0).prop_map(|share| 1.0 - share))
}

fn any_arrays() -> impl Strategy<Value = ArrayOptions> {
    let target = prop_oneof![
        Just(None),
        Just(Some(TargetKind::Class)),
        Just(Some(TargetKind::Number))
    ];
    (any_share(), target).prop_map(|(test, target)| ArrayOptions { test, target })
}

fn any_images() -> impl Strategy<Value = ImageOptions> {
    let size = prop::option::of((1..=4096u32, 1..=4096u32).prop_map(|(width, height)| Size { width, height }));
    let colour = prop_oneof![Just(None), Just(Some(Colour::Grey)), Just(Some(Colour::Rgb))];
    (size, colour, any_share()).prop_map(|(size, colour, test)| ImageOptions { size, colour, test })
}

fn any_spec() -> impl Strategy<Value = DataSpec> {
    prop_oneof![
        Just(DataSpec::BuiltinMnist),
        Just(DataSpec::Module),
        ".+".prop_map(|directory| DataSpec::Idx {
            directory: directory.into()
        }),
        ".+".prop_map(|directory| DataSpec::Cifar {
            directory: directory.into()
        }),
        ("[^?]+", any_arrays()).prop_map(|(file, arrays)| DataSpec::Npz {
            file: file.into(),
            arrays
        }),
        ("[^?]+", any_images()).prop_map(|(directory, images)| DataSpec::Images {
            directory: directory.into(),
            images
        }),
        ("[^?]+", any_table()).prop_map(|(file, table)| DataSpec::Parquet {
            file: file.into(),
            table
        }),
        ("[^?]+", any_separator(), any_table()).prop_map(|(file, separator, table)| DataSpec::Csv {
            file: file.into(),
            separator,
            table,
        }),
    ]
}

#[test]
fn a_test_part_is_written_only_where_it_was_given() {
    for (text, named) in [
        ("csv:f.csv", false),
        ("csv:f.csv?label=test", false),
        ("csv:f.csv?label=a&test=0.2", true),
        ("csv:f.csv?testfile=g.csv", true),
        ("npz:f.npz", false),
        ("npz:f.npz?test=0.2&target=class", true),
        ("images:d?size=8x8", false),
    ] {
        assert_eq!(names_test_part(text), named, "{text}");
        let spec: DataSpec = text.parse().unwrap();
        if !text.starts_with("csv:") {
            assert_eq!(spec.to_string(), text);
        }
        let testing: DataSpec = spec.for_testing();
        assert!(testing.to_string().contains("test=1"), "{testing}");
    }
    assert_eq!("builtin:mnist".parse(), Ok(DataSpec::BuiltinMnist.for_testing()));
}

proptest! {
    #[test]
    fn the_text_of_a_spec_reads_back(spec in any_spec()) {
        prop_assume!(spec.path().is_none_or(|path| path.as_os_str() != "-"));
        prop_assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
        let json = serde_json::to_string(&spec).unwrap();
        prop_assert_eq!(serde_json::from_str::<DataSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn no_text_panics(text in "(builtin|idx|csv|npz|images|parquet|cifar):.*") {
        let _ = text.parse::<DataSpec>();
    }
}
