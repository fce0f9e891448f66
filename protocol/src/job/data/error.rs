//! Errors for texts that do not describe a data source.

use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataSpecError {
    /// Error in the text of a data source: it starts with none of the known schemes.
    #[error(
        "'{0}' is not a data source: write builtin:mnist, csv:FILE, parquet:FILE, npz:FILE, images:DIR, cifar:DIR or \
         idx:DIR"
    )]
    UnknownScheme(String),
    /// Error in the text of a data source: it names a file without the scheme that says how to read it.
    #[error("'{text}' lacks the format of its data: write {instead}")]
    NoScheme {
        /// Text of the data source that was given.
        text: String,
        /// Text of a data source that the user should write instead, judging by the file's name.
        instead: String,
    },
    /// Error in the text of a data source: it names a pipe, which can be read only once.
    #[error(
        "'{0}:-' is a pipe, but every node reads the data, and more than once: save the data to a file, and write \
         {0}:FILE"
    )]
    Pipe(&'static str),
    /// Error in the text of a data source: no dataset of this name is built in.
    #[error("no dataset '{0}' is built in: write builtin:mnist, the only one")]
    UnknownBuiltin(String),
    /// Error in the text of a data source: the path behind its scheme is empty.
    #[error("nothing follows '{kind}:': write {kind}:{place} with the path of {what}")]
    NoPath {
        /// Scheme whose path is empty in the text of a data source.
        kind: &'static str,
        /// Placeholder for the missing path in the error message: `FILE` or `DIR`.
        place: &'static str,
        /// Description, for the error message, of the file or directory that the path must name.
        what: &'static str,
    },
    /// Error in the text of a data source: arrays have no option of this name.
    #[error("'{0}' is not an option of npz: write test=SHARE or target=class|number, separated by '&'")]
    ArrayOption(String),
    /// Error in the text of a data source: images have no option of this name.
    #[error("'{0}' is not an option of images: write size=32x32, colour=grey|rgb or test=SHARE, separated by '&'")]
    ImageOption(String),
    /// Error in the text of a data source: the value of `colour=` names no colours.
    #[error("colour={0} is not known: write colour=grey or colour=rgb")]
    Colour(String),
    /// Error in the text of a data source: the value of `size=` is not the size of an image.
    #[error("size={0} is not an image size: write width and height in pixels, such as size=32x32")]
    Size(String),
    /// Error in the text of a data source: tables have no option of this name.
    #[error(
        "'{0}' is not an option of a table: write label=, test=, testfile=, target=, sep=, missing=, text=, onehot=, \
         hash=, words=, date= or drop=, separated by '&' (give a column whose name holds '&' or ',' by its position)"
    )]
    UnknownOption(String),
    /// Error in the text of a data source: an option is given twice.
    #[error("the option '{0}' is given twice: keep one of the two")]
    RepeatedOption(String),
    /// Error in the text of a data source: the name of a column is empty.
    #[error("a column name is empty: write the column's name or position, such as label=kind or label=-1")]
    EmptyColumn,
    /// Error in the text of a data source: the value of `test=` is not a share of the samples.
    #[error("test={0} is not a share of the samples: write a number above 0 and at most 1")]
    TestFraction(String),
    /// Error in the text of a data source: `testfile=` has no value.
    #[error("no file follows 'testfile=': write testfile=FILE with the path of the samples to test on")]
    NoTestFile,
    /// Error in the text of a data source: two ways to choose the test rows are given.
    #[error("test= and testfile= are both given: keep one of the two")]
    TwoTests,
    /// Error in the text of a data source: the value of `sep=` names no known separator.
    #[error("sep={0} is not a known separator: write sep=comma, sep=semicolon, sep=tab or sep=bar")]
    Separator(String),
    /// Error in the text of a data source: the value of `missing=` names no known treatment of missing numbers.
    #[error("missing={0} is not known: write missing=mean, missing=zero or missing=error")]
    Missing(String),
    /// Error in the text of a data source: the value of `text=` names no known treatment of texts.
    #[error("text={0} is not known: write text=onehot, text=hash:32 or text=drop")]
    TextRule(String),
    /// Error in the text of a data source: a column's texts cannot be hashed to this number of inputs.
    #[error("texts cannot be hashed to '{0}' inputs: write a whole number from 2 to 65536, such as hash=colour:32")]
    Buckets(String),
    /// Error in the text of a data source: a column is named in two options that exclude each other.
    #[error(
        "column '{0}' is named twice: name a column in only one of label=, onehot=, hash=, words=, date= and \
         drop="
    )]
    TwoRules(String),
    /// Error in the text of a data source: the value of `target=` is neither `class` nor `number`.
    #[error("target={0} is not a known target: write target=class or target=number")]
    Target(String),
    /// Error in the text of a data source: several label columns are to be classes, but a sample has only one class.
    #[error(
        "several label columns can only be numbers, not classes: keep one label column, or leave out \
         target=class"
    )]
    SeveralClasses,
}
