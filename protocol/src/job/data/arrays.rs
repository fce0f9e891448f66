//! Options for reading arrays and folders of images.

use std::fmt;
use std::str::FromStr;

use super::test_split::{DEFAULT_SHARE, share};
use super::{DataSpecError, TargetKind};
use crate::text_options::words;

/// Longest side of an image in pixels that the option `size=` may ask for.
const SIDE_MAX: u32 = 1 << 12;

/// Options for reading a file of arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ArrayOptions {
    /// Share of the samples that become test rows, if one is given. A file with test samples of its own has none.
    pub test: Option<f64>,
    /// Kind of the labels, classes or numbers. `None`: the kind is inferred from their values.
    pub target: Option<TargetKind>,
}

impl ArrayOptions {
    /// Returns the share of the samples that become test rows, for a file that does not mark test samples itself.
    #[must_use]
    pub fn test_share(&self) -> f64 {
        self.test.unwrap_or(DEFAULT_SHARE)
    }

    /// Sets the option `key` of a file of arrays. Returns `false` if arrays have no option of this name.
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

/// Writes the options that are given, after a `?` and separated by `&`.
fn write_options(f: &mut fmt::Formatter<'_>, options: impl IntoIterator<Item = Option<String>>) -> fmt::Result {
    for (place, option) in options.into_iter().flatten().enumerate() {
        write!(f, "{}{option}", if place == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// Options for reading a folder of images.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageOptions {
    /// Size that every image is brought to. `None`: all images must have the same size.
    pub size: Option<Size>,
    /// Colours that every image is brought to. `None`: the colours of the first image.
    pub colour: Option<Colour>,
    /// Share of the samples that become test rows, if one is given. A folder with test samples of its own has none.
    pub test: Option<f64>,
}

/// Size of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

/// Colour channels of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// One channel: shades of grey.
    Grey,
    /// Three channels: red, green and blue.
    Rgb,
}

words!(Colour, DataSpecError, DataSpecError::Colour, "grey" => Self::Grey, "rgb" => Self::Rgb);

impl ImageOptions {
    /// Returns the share of the samples that become test rows, for a folder that does not mark test samples itself.
    #[must_use]
    pub fn test_share(&self) -> f64 {
        self.test.unwrap_or(DEFAULT_SHARE)
    }

    /// Sets the option `key` of a folder of images. Returns `false` if images have no option of this name.
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
