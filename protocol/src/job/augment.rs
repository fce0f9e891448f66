//! The augmentation of training images that a job asks for.

use std::fmt;
use std::str::FromStr;

/// Random changes of training images, drawn anew at each use, so that the model sees each image in many variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augment {
    /// True if half of the images are mirrored, left to right.
    pub flip: bool,
    /// Largest shift of an image to each side in pixels; 0 for no shift. Pixels that come in from outside are black.
    pub crop: u8,
}

impl Augment {
    /// Largest `crop` in pixels.
    pub const CROP_MAX: u8 = 64;

    /// True if the job asks for no augmentation, so that images stay unchanged.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl FromStr for Augment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut augment = Self::default();
        if text.trim() == "none" {
            return Ok(augment);
        }
        for part in text.split(',').map(str::trim) {
            match part.split_once('=').unwrap_or((part, "")) {
                ("flip", "") => augment.flip = true,
                ("crop", pixels) => {
                    let pixels = pixels
                        .parse()
                        .ok()
                        .filter(|pixels| (1..=Self::CROP_MAX).contains(pixels));
                    augment.crop = pixels.ok_or_else(|| {
                        format!(
                            "crop needs a number of pixels from 1 to {}, as in crop=4",
                            Self::CROP_MAX
                        )
                    })?;
                }
                _ => {
                    return Err(format!(
                        "'{part}' is not an image augmentation; use none, flip, crop=N or flip,crop=N"
                    ));
                }
            }
        }
        Ok(augment)
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { flip: false, crop: 0 } => f.write_str("none"),
            Self { flip: true, crop: 0 } => f.write_str("flip"),
            Self { flip: false, crop } => write!(f, "crop={crop}"),
            Self { flip: true, crop } => write!(f, "flip,crop={crop}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_are_written() {
        for text in ["none", "flip", "crop=4", "flip,crop=64"] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        assert_eq!(" crop=2 , flip".parse(), Ok(Augment { flip: true, crop: 2 }));
        for text in [
            "",
            "rotate",
            "flip=2",
            "crop",
            "crop=0",
            "crop=65",
            "crop=-1",
            "none,flip",
        ] {
            assert!(text.parse::<Augment>().is_err(), "{text}");
        }
    }
}
