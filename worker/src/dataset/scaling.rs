//! Scaling from stored values to the numbers that a model gets.

use serde::{Deserialize, Serialize};

/// The shift and factor that turn stored values into a model's inputs. A model file stores it, because a model only
/// works on inputs scaled like its training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scaling {
    /// Bytes from 0 to 255 become numbers from 0 to 1.
    Unit,
    /// Each column is shifted to a mean of 0 and scaled to a standard deviation of 1.
    Standard {
        /// Mean that is subtracted from each column.
        mean: Vec<f32>,
        /// Standard deviation that each shifted column is divided by.
        deviation: Vec<f32>,
    },
}

impl Scaling {
    /// Factor that turns a byte into a number from 0 to 1 ([`Scaling::Unit`]).
    pub const UNIT: f32 = 1.0 / 255.0;

    /// True if the scaling is valid for samples with this many features; a damaged model file may say anything.
    pub(crate) fn fits(&self, features: usize) -> bool {
        match self {
            Self::Unit => true,
            Self::Standard { mean, deviation } => {
                [mean.len(), deviation.len()] == [features; 2]
                    && mean.iter().all(|mean| mean.is_finite())
                    && deviation
                        .iter()
                        .all(|&deviation| deviation > 0.0 && deviation.is_finite())
            }
        }
    }

    /// Scales the stored values of one sample in place. A result beyond the range of `f32` becomes infinite.
    pub fn apply(&self, sample: &mut [f32]) {
        match self {
            Self::Unit => sample.iter_mut().for_each(|value| *value *= Self::UNIT),
            Self::Standard { mean, deviation } => {
                for ((value, &mean), &deviation) in sample.iter_mut().zip(mean).zip(deviation) {
                    let shifted = f64::from(*value) - f64::from(mean);
                    *value = (shifted / f64::from(deviation)) as f32;
                }
            }
        }
    }

    /// Computes the scaling that standardises the given rows of `columns` numbers.
    pub(super) fn standard<'a>(columns: usize, rows: &(impl Iterator<Item = &'a [f32]> + Clone)) -> Self {
        let Ok(scaling) = Self::standard_of(columns, |take| {
            rows.clone().for_each(take);
            Ok::<_, std::convert::Infallible>(())
        });
        scaling
    }

    /// Computes the scaling that standardises the rows that `each` passes on. It is called twice, and must pass on the
    /// same rows in the same order.
    ///
    /// Sums run in `f64` and in the order of the rows, so every node gets the same bits.
    pub(super) fn standard_of<E>(
        columns: usize,
        mut each: impl FnMut(&mut dyn FnMut(&[f32])) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (mut count, mut sums) = (0usize, vec![0.0; columns]);
        each(&mut |row| {
            count += 1;
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += f64::from(value);
            }
        })?;
        let count = count.max(1) as f64;
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();

        // The deviation is computed about the rounded mean, because that is subtracted later. A constant column then
        // has a deviation of exactly 0, not a rounding error that would blow up its values.
        let mut squares = vec![0.0; columns];
        each(&mut |row| {
            for ((square, &value), &mean) in squares.iter_mut().zip(row).zip(&mean) {
                *square += (f64::from(value) - f64::from(mean)).powi(2);
            }
        })?;
        let deviation = squares
            .iter()
            .map(|square| match (square / count).sqrt() as f32 {
                0.0 => 1.0,
                deviation => deviation,
            })
            .collect();
        Ok(Self::Standard { mean, deviation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_end_up_with_mean_0_and_deviation_1() {
        let rows = [[1.0f32, 100.0], [3.0, 100.0], [5.0, 400.0], [7.0, 400.0]];
        let scaling = Scaling::standard(2, &rows.iter().map(<[f32; 2]>::as_slice));
        let mut scaled = rows;
        for row in &mut scaled {
            scaling.apply(row);
        }
        for column in 0..2 {
            let mean: f32 = scaled.iter().map(|row| row[column]).sum::<f32>() / 4.0;
            let square: f32 = scaled.iter().map(|row| row[column].powi(2)).sum::<f32>() / 4.0;
            assert!(mean.abs() < 1e-6, "{mean}");
            assert!((square - 1.0).abs() < 1e-6, "{square}");
        }
    }

    #[test]
    fn a_constant_column_becomes_zero() {
        // 0.1 has no exact binary form: an imprecise mean would be off by a rounding error.
        let rows = vec![[0.1f32, 1.7e9]; 1000];
        let scaling = Scaling::standard(2, &rows.iter().map(<[f32; 2]>::as_slice));
        let mut row = rows[0];
        scaling.apply(&mut row);
        assert_eq!(row, [0.0, 0.0]);
    }

    #[test]
    fn a_scaling_that_none_of_ours_can_be_does_not_fit() {
        let standard = |mean: f32, deviation: f32| Scaling::Standard {
            mean: vec![mean],
            deviation: vec![deviation],
        };
        assert!(Scaling::Unit.fits(7) && standard(-1.0, 0.5).fits(1));
        assert!(!standard(-1.0, 0.5).fits(2));
        for (mean, deviation) in [(f32::INFINITY, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, f32::INFINITY)] {
            assert!(!standard(mean, deviation).fits(1), "{mean} {deviation}");
        }
    }

    #[test]
    fn unit_scaling_ends_at_exactly_one() {
        let mut row = [0.0, 255.0];
        Scaling::Unit.apply(&mut row);
        assert_eq!(row, [0.0, 1.0]);
    }
}
