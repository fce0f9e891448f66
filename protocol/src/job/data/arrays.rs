//! How arrays and folders of images are read.

use std::fmt;
use std::str::FromStr;

use super::test_split::{DEFAULT_SHARE, share};
use super::{DataSpecError, TargetKind};
use crate::text_options::words;

/// The longest side of an image that is believed.
const SIDE_MAX: u32 = 1 << 12;

/// What is said of a file of arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArrayOptions {
    /// The share of samples kept for testing, if one is given. A file with test samples of its own has none.
    pub test: Option<f64>,
    /// Whether labels are classes or numbers; found out from what they are where nothing is said.
    pub target: Option<TargetKind>,
}

impl ArrayOptions {
    /// The share of samples kept for testing where the file does not tell them apart itself.
    #[must_use]
    pub fn test_share(&self) -> f64 {
        self.test.unwrap_or(DEFAULT_SHARE)
    }

    /// Takes an option; false if arrays have none of this name.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, DataSpecError> {
        match key {
            "test" => self.test = Some(share(value)?),
            "target" => self.target = Some(value.parse()?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl fmt::Display for ArrayOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = [
            self.test.map(|share| format!("test={share}")),
            self.target.map(|target| format!("target={target}")),
        ];
        write_options(f, options)
    }
}

/// Writes the options that are given, after a `?`.
fn write_options(f: &mut fmt::Formatter<'_>, options: impl IntoIterator<Item = Option<String>>) -> fmt::Result {
    for (place, option) in options.into_iter().flatten().enumerate() {
        write!(f, "{}{option}", if place == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// What is said of a folder of images.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageOptions {
    /// What every image is made; without it all must be of one size.
    pub size: Option<Size>,
    /// Whether images have colours; what the first one has where nothing is said.
    pub colour: Option<Colour>,
    /// The share of samples kept for testing, if one is given. A folder with test samples of its own has none.
    pub test: Option<f64>,
}

/// The size of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// How wide it is.
    pub width: u32,
    /// How high it is.
    pub height: u32,
}

/// The colours of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// One channel.
    Grey,
    /// Three channels.
    Rgb,
}

words!(Colour, DataSpecError, DataSpecError::Colour, "grey" => Self::Grey, "rgb" => Self::Rgb);

impl ImageOptions {
    /// The share of samples kept for testing where the folder does not tell them apart itself.
    #[must_use]
    pub fn test_share(&self) -> f64 {
        self.test.unwrap_or(DEFAULT_SHARE)
    }

    /// Takes an option; false if images have none of this name.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, DataSpecError> {
        match key {
            "size" => self.size = Some(value.parse()?),
            "colour" | "color" => self.colour = Some(value.parse()?),
            "test" => self.test = Some(share(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl FromStr for Size {
    type Err = DataSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let side = |text: &str| text.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
        // One number is the side of a square.
        let (width, height) = text.split_once('x').unwrap_or((text, text));
        let size = side(width)
            .zip(side(height))
            .map(|(width, height)| Self { width, height });
        size.ok_or_else(|| DataSpecError::Size(text.to_owned()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl fmt::Display for ImageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = [
            self.test.map(|share| format!("test={share}")),
            self.size.map(|size| format!("size={size}")),
            self.colour.map(|colour| format!("colour={colour}")),
        ];
        write_options(f, options)
    }
}
