//! Why a text does not say where samples come from.

use thiserror::Error;

/// Why a text does not say where samples come from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataSpecError {
    /// The text starts with none of the known schemes.
    #[error("'{0}' is not a data source: write builtin:mnist, csv:FILE, npz:FILE, images:DIR, cifar:DIR or idx:DIR")]
    UnknownScheme(String),
    /// A file without what it is.
    #[error("'{text}' lacks the format of its data: write {instead}")]
    NoScheme {
        /// The text.
        text: String,
        /// What its name says that it is.
        instead: String,
    },
    /// A pipe.
    #[error(
        "'{0}:-' is a pipe, but every node reads the data, and more than once: save the data to a file, and write \
         {0}:FILE"
    )]
    Pipe(&'static str),
    /// No such dataset is built in.
    #[error("no dataset '{0}' is built in: write builtin:mnist, the only one")]
    UnknownBuiltin(String),
    /// A kind of data without the place where it is.
    #[error("nothing follows '{kind}:': write {kind}:{place} with the path of {what}")]
    NoPath {
        /// The kind.
        kind: &'static str,
        /// A file or a directory.
        place: &'static str,
        /// What lies there.
        what: &'static str,
    },
    /// An option that arrays do not have.
    #[error("'{0}' is not an option of npz: write test=SHARE or target=class|number, separated by '&'")]
    ArrayOption(String),
    /// An option that images do not have.
    #[error("'{0}' is not an option of images: write size=32x32, colour=grey|rgb or test=SHARE, separated by '&'")]
    ImageOption(String),
    /// No colours.
    #[error("colour={0} is not known: write colour=grey or colour=rgb")]
    Colour(String),
    /// No size of an image.
    #[error("size={0} is not an image size: write width and height in pixels, such as size=32x32")]
    Size(String),
    /// An option that tables do not have.
    #[error(
        "'{0}' is not an option of a table: write label=, test=, testfile=, target=, sep=, missing=, text=, onehot=, \
         hash=, words=, date= or drop=, separated by '&' (give a column whose name holds '&' or ',' by its position)"
    )]
    UnknownOption(String),
    /// The same option twice.
    #[error("the option '{0}' is given twice: keep one of the two")]
    RepeatedOption(String),
    /// A column without a name.
    #[error("a column name is empty: write the column's name or position, such as label=kind or label=-1")]
    EmptyColumn,
    /// A share of test samples that is no share.
    #[error("test={0} is not a share of the samples: write a number above 0 and at most 1")]
    TestFraction(String),
    /// `testfile=` without a value.
    #[error("no file follows 'testfile=': write testfile=FILE with the path of the samples to test on")]
    NoTestFile,
    /// Two ways to hold samples out.
    #[error("test= and testfile= are both given: keep one of the two")]
    TwoTests,
    /// None of the separators.
    #[error("sep={0} is not a known separator: write sep=comma, sep=semicolon, sep=tab or sep=bar")]
    Separator(String),
    /// None of what can become of missing numbers.
    #[error("missing={0} is not known: write missing=mean, missing=zero or missing=error")]
    Missing(String),
    /// None of what can become of texts.
    #[error("text={0} is not known: write text=onehot, text=hash:32 or text=drop")]
    TextRule(String),
    /// A number of inputs that texts cannot be hashed to.
    #[error("texts cannot be hashed to '{0}' inputs: write a whole number from 2 to 65536, such as hash=colour:32")]
    Buckets(String),
    /// A column in two lists.
    #[error(
        "column '{0}' is named twice: name a column in only one of label=, onehot=, hash=, words=, date= and \
         drop="
    )]
    TwoRules(String),
    /// A label is either a class or a number.
    #[error("target={0} is not a known target: write target=class or target=number")]
    Target(String),
    /// Several classes for one sample.
    #[error(
        "several label columns can only be numbers, not classes: keep one label column, or leave out \
         target=class"
    )]
    SeveralClasses,
}
