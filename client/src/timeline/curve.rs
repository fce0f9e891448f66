//! Curves of a run's figures from its start, in bounded memory.

use serde::{Serialize, Serializer};

/// Largest number of points in a run's curve, more than a wide terminal has dots.
const CAPACITY: usize = 512;

/// One point of a run's curve: figures at one moment. Unknown values are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// Time of a curve's point, in seconds since the run's first step.
    pub(crate) seconds: f64,
    pub(crate) samples: f64,
    /// Mean training loss of the second before this point.
    pub(crate) loss: f64,
    pub(crate) samples_per_second: f64,
    /// Bytes that all nodes have sent so far; `dense` is the bytes that they would have sent as full gradients.
    pub(crate) sent: f64,
    pub(crate) dense: f64,
    pub(crate) staleness: f64,
}

impl Point {
    /// Returns the midpoint of two points of a curve. A value that only one of them knows is taken from that one.
    fn between(one: Self, other: Self) -> Self {
        let [seconds, samples, loss, samples_per_second, sent, dense, staleness] =
            std::array::from_fn(|at| match (one.values()[at], other.values()[at]) {
                (known, unknown) if unknown.is_nan() => known,
                (unknown, known) if unknown.is_nan() => known,
                (one, other) => f64::midpoint(one, other),
            });
        Self {
            seconds,
            samples,
            loss,
            samples_per_second,
            sent,
            dense,
            staleness,
        }
    }

    fn values(&self) -> [f64; 7] {
        [
            self.seconds,
            self.samples,
            self.loss,
            self.samples_per_second,
            self.sent,
            self.dense,
            self.staleness,
        ]
    }
}

/// Serialises a point as an array of numbers, with `null` for unknown values: the page reads hundreds of points.
impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = self.values().map(|value| Some(value).filter(|value| value.is_finite()));
        known.serialize(serializer)
    }
}

/// Curve of a run's figures, such as loss and speed, from its start. When the curve is full, neighbouring points are
/// merged, and each later point stands for twice as many measurements. The resolution is therefore the same along the
/// whole curve.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    points: Vec<Point>,
    /// Number of times that neighbouring points of the curve were merged.
    halvings: u32,
    /// Measurements that are not a point of the curve yet: entry `i` is the mean of 2^i of them, if there is one.
    pending: Vec<Option<Point>>,
}

impl Curve {
    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Returns a number that changes when points of the curve are merged; while it stays the same, points are only
    /// appended.
    pub(crate) fn generation(&self) -> u32 {
        self.halvings
    }

    pub(super) fn push(&mut self, point: Point) {
        let mut carried = point;
        for pending in &mut self.pending {
            let Some(first) = pending.take() else {
                *pending = Some(carried);
                return;
            };
            carried = Point::between(first, carried);
        }
        self.points.push(carried);
        if self.points.len() == CAPACITY {
            let pairs = self.points.chunks_exact(2);
            self.points = pairs.map(|pair| Point::between(pair[0], pair[1])).collect();
            self.halvings += 1;
            self.pending.push(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(number: f64) -> Point {
        Point {
            seconds: number,
            samples: 2.0 * number,
            loss: 1.0 - number,
            samples_per_second: number,
            sent: number,
            dense: number,
            staleness: number,
        }
    }

    fn curve(points: u64) -> Curve {
        let mut curve = Curve::default();
        (0..points).for_each(|number| curve.push(point(number as f64)));
        curve
    }

    #[test]
    fn few_points_are_kept_as_they_are() {
        let seconds: Vec<f64> = curve(500).points().iter().map(|point| point.seconds).collect();
        assert_eq!(seconds, (0..500).map(f64::from).collect::<Vec<_>>());
    }

    #[test]
    fn many_points_are_merged_evenly_and_all_count() {
        for many in [512, 513, 514, 1_023, 1_024, 1_025, 5_000, 100_000] {
            let curve = curve(many);
            let kept = curve.points();
            assert!((CAPACITY / 2..CAPACITY).contains(&kept.len()), "{many}: {}", kept.len());
            let stride = 1u64 << curve.generation();
            for (place, kept) in kept.iter().enumerate() {
                let middle = place as f64 * stride as f64 + (stride as f64 - 1.0) / 2.0;
                assert_eq!(*kept, point(middle));
            }
            let pending = curve.pending.iter().enumerate().filter(|(_, one)| one.is_some());
            let pending: u64 = pending.map(|(level, _)| 1 << level).sum();
            assert_eq!(kept.len() as u64 * stride + pending, many);
        }
    }

    #[test]
    fn what_is_not_known_is_taken_from_who_knows_and_is_null_in_the_end() {
        let unknown = Point {
            loss: f64::NAN,
            ..point(1.0)
        };
        assert_eq!(Point::between(unknown, point(3.0)).loss, -2.0);
        assert_eq!(Point::between(point(3.0), unknown).loss, -2.0);
        let text = serde_json::to_string(&unknown).unwrap();
        assert_eq!(text, "[1.0,2.0,null,1.0,1.0,1.0,1.0]");
    }
}
