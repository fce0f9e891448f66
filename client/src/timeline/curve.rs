//! The course of a run from its start, in bounded space.

use serde::{Serialize, Serializer};

/// How many points are kept at most: more than a wide terminal has dots.
const CAPACITY: usize = 512;

/// A run at one moment. What is not known is no number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// Since the first step.
    pub(crate) seconds: f64,
    pub(crate) samples: f64,
    /// The training loss of the last second.
    pub(crate) loss: f64,
    pub(crate) samples_per_second: f64,
    /// Bytes that all nodes have sent, and what whole gradients would have cost.
    pub(crate) sent: f64,
    pub(crate) dense: f64,
    pub(crate) staleness: f64,
}

impl Point {
    /// The point between two. What only one of them knows is taken from that one.
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

/// As a row of numbers: a page reads hundreds of them.
impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = self.values().map(|value| Some(value).filter(|value| value.is_finite()));
        known.serialize(serializer)
    }
}

/// A curve of points. When it is full, neighbours become one and each point to come stands for twice as many, so it
/// reaches back to the start however long the run, and is equally fine all along.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    points: Vec<Point>,
    /// How often neighbours have become one.
    halvings: u32,
    /// Points that are on their way to be one: what stands for 1, 2, 4 … of them, each at most once.
    pending: Vec<Option<Point>>,
}

impl Curve {
    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }

    /// As long as this stays, points are only added at the end.
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
