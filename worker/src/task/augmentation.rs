//! Image augmentation in training: mirrors and shifts each image differently every time.
//!
//! The view of an image is drawn for a sample's place in a minibatch, from the key that also decides dropout in that
//! step. The GPU's kernel that gathers samples does the same as [`apply`].

use protocol::job::augment::Augment;
use protocol::job::model::Shape;
use protocol::rng::CounterRng;

use crate::dataset::{Answers, Dataset};

/// Random stream of the seed from which the mirroring and shifts of images are drawn.
const STREAM: u64 = 0x5649_4557;

/// Returns the inputs of some samples, augmented for training, and gathers their answers.
pub(crate) fn gathered(
    dataset: &Dataset,
    augment: Augment,
    samples: &[u32],
    key: u64,
    answers: &mut Answers,
) -> Vec<f32> {
    let mut inputs = Vec::new();
    dataset.train.gather(samples, &mut inputs, answers);
    if !augment.is_none() {
        apply(draw(augment, key, samples.len()), dataset.input, &mut inputs);
    }
    inputs
}

/// Augmentation drawn for one image: mirrored or not, and shifted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    flip: bool,
    /// Pixels by which the visible window is moved down over the original image; negative means up.
    down: i8,
    /// Pixels by which the visible window is moved to the right over the original image; negative means to the left.
    right: i8,
}

impl View {
    /// Draws the mirroring and the shift of one image from a random word.
    fn drawn(augment: Augment, word: u64) -> Self {
        let shift = |word: u32| {
            let places = 2 * u64::from(augment.crop) + 1;
            (((u64::from(word) * places) >> 32) as i64 - i64::from(augment.crop)) as i8
        };
        Self {
            flip: augment.flip && word & 1 == 1,
            // Bit 0 decides the flip; it has no effect on the upper half of the product in `shift`.
            down: shift((word >> 32) as u32),
            right: shift(word as u32),
        }
    }

    /// Returns the mirroring and shift in the form that the GPU's kernel reads.
    #[cfg(feature = "cuda")]
    pub(crate) fn word(self) -> u32 {
        let shifted = |by: i8| (i32::from(by) + 128) as u32;
        u32::from(self.flip) | shifted(self.down) << 8 | shifted(self.right) << 16
    }

    /// Returns the column of the original image that column `at` of the augmented one shows; `None` outside of the
    /// image.
    fn column(self, at: usize, width: usize) -> Option<usize> {
        let at = if self.flip { width - 1 - at } else { at };
        at.checked_add_signed(self.right.into()).filter(|&at| at < width)
    }
}

/// Draws the mirroring and shift of each image of a minibatch, from the random key of the step.
pub(crate) fn draw(augment: Augment, key: u64, samples: usize) -> impl Iterator<Item = View> {
    let rng = CounterRng::new(key, STREAM);
    (0..samples as u64).map(move |place| View::drawn(augment, rng.at(place)))
}

/// Mirrors and shifts the images of a minibatch in place.
pub(crate) fn apply(views: impl Iterator<Item = View>, shape: Shape, inputs: &mut [f32]) {
    let Shape::Image { height, width, .. } = shape else {
        return;
    };
    let mut before = Vec::new();
    for (view, image) in views.zip(inputs.chunks_mut(shape.elements())) {
        before.clear();
        before.extend_from_slice(image);
        let planes = image.chunks_mut(height * width).zip(before.chunks(height * width));
        for (seen, plane) in planes {
            for (y, row) in seen.chunks_mut(width).enumerate() {
                let from = y.checked_add_signed(view.down.into()).filter(|&y| y < height);
                for (x, pixel) in row.iter_mut().enumerate() {
                    let place = from.zip(view.column(x, width));
                    *pixel = place.map_or(0.0, |(y, x)| plane[y * width + x]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::Image {
        channels: 2,
        height: 2,
        width: 3,
    };

    fn seen(view: View) -> Vec<f32> {
        let mut inputs: Vec<f32> = (1..=12u8).map(f32::from).collect();
        apply([view].into_iter(), SHAPE, &mut inputs);
        inputs
    }

    #[test]
    fn images_are_mirrored_and_shifted_in_every_plane() {
        let view = View::default();
        assert_eq!(seen(view)[..6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let flipped = View { flip: true, ..view };
        assert_eq!(seen(flipped)[6..], [9.0, 8.0, 7.0, 12.0, 11.0, 10.0]);
        let shifted = View {
            down: 1,
            right: -1,
            ..view
        };
        assert_eq!(seen(shifted)[..6], [0.0, 4.0, 5.0, 0.0, 0.0, 0.0]);
        let both = View {
            flip: true,
            down: -1,
            right: 1,
        };
        assert_eq!(seen(both)[..6], [0.0, 0.0, 0.0, 0.0, 3.0, 2.0]);
        let gone = View {
            down: 5,
            right: -7,
            ..view
        };
        assert_eq!(seen(gone), [0.0; 12]);
    }

    #[test]
    fn views_are_spread_over_all_that_there_are_and_the_same_for_a_key() {
        let augment = Augment { flip: true, crop: 2 };
        let views: Vec<View> = draw(augment, 7, 5_000).collect();
        assert_eq!(views, draw(augment, 7, 5_000).collect::<Vec<_>>());
        assert_ne!(views[..100], draw(augment, 8, 100).collect::<Vec<_>>()[..]);
        for flip in [false, true] {
            for down in -2..=2 {
                for right in -2..=2 {
                    let view = View { flip, down, right };
                    let found = views.iter().filter(|&&one| one == view).count();
                    assert!((60..140).contains(&found), "{view:?}: {found}");
                }
            }
        }
        let plain = Augment { flip: false, crop: 0 };
        assert!(draw(plain, 7, 50).all(|view| view == View::default()));
    }
}
