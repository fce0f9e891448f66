//! Decodes image files to bytes, one channel after the other.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, ImageResult, Limits};
use protocol::job::data::{Colour, ImageOptions, Size};
use protocol::job::model::Shape;

use crate::dataset::budget::{self, Budget};
use crate::dataset::{DatasetError, Known, Scaling, kind, source};

/// Most bytes of one decoded image: a small file can claim any size.
const IMAGE_BYTES_MAX: u64 = 256 << 20;
/// Number of copies of an image in memory while the image is decoded, resized and converted.
const COPIES: u64 = 3;

/// Lock held while a large image is decoded, because memory suffices for only one at a time.
static LARGE: Mutex<()> = Mutex::new(());

/// Largest sizes of images, in bytes after decoding, that memory has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageLimits {
    /// Size in bytes after decoding up to which all threads may decode images at the same time.
    small: u64,
    /// Size in bytes after decoding up to which an image is accepted; above `small`, only one thread at a time decodes
    /// one.
    large: u64,
}

impl ImageLimits {
    /// Divides a memory budget: half for one large image, and half for small ones on all threads.
    fn of(budget: Budget, threads: usize) -> Self {
        let large = budget.room_for(2 * COPIES);
        Self {
            small: large / threads as u64,
            large: large.min(IMAGE_BYTES_MAX),
        }
    }
}

/// Size and colours that every image is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    size: Size,
    colour: Colour,
    /// True if images of other sizes are resized instead of refused.
    resize: bool,
}

impl Form {
    /// Returns the size and colours that the user requested; where nothing is requested, those of the first image.
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

    /// Returns the size and colours of images that a model takes, or `None` if its inputs are not images.
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

    /// Decodes an image into `to`, which has one byte per number of the converted image.
    pub(super) fn decode(self, file: &Path, to: &mut [u8]) -> Result<(), DatasetError> {
        let mut image = load(file)?;
        let found = size(&image);
        if found != self.size {
            if !self.resize {
                return Err(DatasetError::Image {
                    file: file.to_owned(),
                    why: format!(
                        "is an image of {found} pixels, but other images have {0}: use size={0} to resize all images, \
                         or remove this one",
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

fn decode(mut reader: ImageReader<BufReader<File>>, bytes: ImageLimits) -> ImageResult<DynamicImage> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(bytes.large);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    limits.reserve(decoder.total_bytes())?;
    let is_large = decoder.total_bytes() > bytes.small;
    let _alone = is_large.then(|| LARGE.lock().unwrap_or_else(PoisonError::into_inner));
    decoder.set_limits(limits)?;
    DynamicImage::from_decoder(decoder)
}

fn size(image: &DynamicImage) -> Size {
    Size {
        width: image.width(),
        height: image.height(),
    }
}

fn load(file: &Path) -> Result<DynamicImage, DatasetError> {
    let opened = source::open(file)?;
    let reader = ImageReader::new(BufReader::new(opened))
        .with_guessed_format()
        .map_err(DatasetError::read(file))?;
    let limits = ImageLimits::of(Budget::of_machine(), rayon::current_num_threads());
    decode(reader, limits).map_err(|error| {
        let found = kind::of(&source::first_bytes(file)).map(|kind| kind.name);
        DatasetError::Image {
            file: file.to_owned(),
            why: match found.filter(|&name| name != "an image") {
                Some(name) => format!("is {name}, not a PNG or JPEG image: remove it"),
                None if matches!(error, ImageError::Limits(_)) => {
                    format!(
                        "takes more than {} when it is decoded: make it smaller, or remove it",
                        budget::size(limits.large)
                    )
                }
                None => format!("cannot be decoded ({error}): remove it, or fetch it again"),
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_bounded_before_it_is_decoded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image.png");
        image::GrayImage::new(1000, 1000).save(&path).unwrap();
        let decoded = |limits| {
            let file = BufReader::new(File::open(&path).unwrap());
            decode(ImageReader::new(file).with_guessed_format().unwrap(), limits)
        };
        let limits = |bytes| ImageLimits::of(Budget::of(bytes), 4);
        assert_eq!(limits(2400), ImageLimits { small: 100, large: 400 });
        assert_eq!(limits(u64::MAX).large, IMAGE_BYTES_MAX);
        assert!(
            decoded(limits(6_000_000)).is_ok(),
            "an image within the limit for large images must be decoded"
        );
        assert!(decoded(limits(5_999_999)).is_err());
    }
}
