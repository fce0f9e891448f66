//! From a file to the bytes of an image, each channel by itself.

use std::io::BufReader;
use std::path::Path;

use image::imageops::FilterType;
use image::{DynamicImage, ImageReader, Limits};
use protocol::data::{Colour, ImageOptions, Size};
use protocol::model::Shape;

use crate::dataset::{DatasetError, Known, Scaling, kind, source};

/// Memory that one image may take while it is decoded: a small file can claim anything.
const IMAGE_BYTES_MAX: u64 = 256 << 20;

/// What every image is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    size: Size,
    colour: Colour,
    /// Whether images of other sizes are resized, or refused.
    resize: bool,
}

impl Form {
    /// What was asked for, and else what the first image is.
    pub(super) fn of_first(first: &Path, options: ImageOptions) -> Result<Self, DatasetError> {
        let image = load(first)?;
        let has_colour = image.color().has_color();
        Ok(Self {
            size: options.size.unwrap_or(size(&image)),
            colour: options
                .colour
                .unwrap_or(if has_colour { Colour::Rgb } else { Colour::Grey }),
            resize: options.size.is_some(),
        })
    }

    /// What a model takes, if it takes images.
    pub(super) fn of_model(known: Known<'_>) -> Option<Self> {
        let Shape::Image {
            channels,
            height,
            width,
        } = known.input
        else {
            return None;
        };
        let colour = match channels {
            1 => Colour::Grey,
            3 => Colour::Rgb,
            _ => return None,
        };
        (*known.scaling == Scaling::Unit).then_some(Self {
            size: Size {
                width: u32::try_from(width).ok()?,
                height: u32::try_from(height).ok()?,
            },
            colour,
            resize: true,
        })
    }

    pub(super) fn shape(self) -> Shape {
        Shape::Image {
            channels: match self.colour {
                Colour::Grey => 1,
                Colour::Rgb => 3,
            },
            height: self.size.height as usize,
            width: self.size.width as usize,
        }
    }

    /// Decodes an image to bytes, as many as its shape has.
    pub(super) fn decode(self, file: &Path, to: &mut [u8]) -> Result<(), DatasetError> {
        let mut image = load(file)?;
        let found = size(&image);
        if found != self.size {
            if !self.resize {
                return Err(DatasetError::Image {
                    file: file.to_owned(),
                    why: format!(
                        "is an image of {found} pixels, but others are of {0}: say size={0} to resize all, or remove it",
                        self.size
                    ),
                });
            }
            image = image.resize_exact(self.size.width, self.size.height, FilterType::Triangle);
        }
        match self.colour {
            Colour::Grey => to.copy_from_slice(image.to_luma8().as_raw()),
            Colour::Rgb => {
                let pixels = image.to_rgb8();
                let channels = to.chunks_exact_mut(to.len() / 3);
                for (channel, bytes) in channels.enumerate() {
                    let values = pixels.as_raw().iter().skip(channel).step_by(3);
                    bytes.iter_mut().zip(values).for_each(|(byte, &value)| *byte = value);
                }
            }
        }
        Ok(())
    }
}

fn size(image: &DynamicImage) -> Size {
    Size {
        width: image.width(),
        height: image.height(),
    }
}

fn load(file: &Path) -> Result<DynamicImage, DatasetError> {
    let opened = source::open(file)?;
    let mut reader = ImageReader::new(BufReader::new(opened))
        .with_guessed_format()
        .map_err(DatasetError::read(file))?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(IMAGE_BYTES_MAX);
    reader.limits(limits);
    reader.decode().map_err(|error| {
        let found = kind::of(&source::first_bytes(file)).map(|kind| kind.name);
        DatasetError::Image {
            file: file.to_owned(),
            why: match found.filter(|&name| name != "an image") {
                Some(name) => format!("is {name}, not a PNG or JPEG image: remove it"),
                None => format!("cannot be decoded ({error}): remove it, or fetch it again"),
            },
        }
    })
}
