//! The loss of a run from its start, in bounded space.

/// How many points are kept at most: more than a wide terminal has dots.
const CAPACITY: usize = 512;

/// The loss of the cluster when it had trained so many samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) samples: f64,
    pub(super) loss: f64,
}

/// A curve of points. When it is full, neighbours become one and each point to come stands for twice as many, so it
/// reaches back to the start however long the run, and is equally fine all along.
#[derive(Debug)]
pub(super) struct History {
    points: Vec<Point>,
    /// How many points that came make up one that is kept.
    stride: u64,
    /// The sum of those that are not yet enough for one.
    pending: Point,
    pending_count: u64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            stride: 1,
            pending: NOTHING,
            pending_count: 0,
        }
    }
}

const NOTHING: Point = Point {
    samples: 0.0,
    loss: 0.0,
};

impl History {
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        self.points.iter().copied()
    }

    fn push(&mut self, point: Point) {
        self.pending = sum(self.pending, point);
        self.pending_count += 1;
        if self.pending_count < self.stride {
            return;
        }
        if self.points.len() == CAPACITY {
            self.points = self
                .points
                .chunks_exact(2)
                .map(|pair| mean(sum(pair[0], pair[1]), 2))
                .collect();
            self.stride *= 2;
            // One more of the old kind is half of one of the new.
            return;
        }
        self.points.push(mean(self.pending, self.pending_count));
        self.pending = NOTHING;
        self.pending_count = 0;
    }
}

impl Extend<Point> for History {
    fn extend<I: IntoIterator<Item = Point>>(&mut self, points: I) {
        for point in points {
            self.push(point);
        }
    }
}

fn sum(a: Point, b: Point) -> Point {
    Point {
        samples: a.samples + b.samples,
        loss: a.loss + b.loss,
    }
}

fn mean(sum: Point, count: u64) -> Point {
    Point {
        samples: sum.samples / count as f64,
        loss: sum.loss / count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(points: u64) -> History {
        let mut history = History::default();
        history.extend((0..points).map(|point| Point {
            samples: point as f64,
            loss: 1.0 - point as f64,
        }));
        history
    }

    #[test]
    fn few_points_are_kept_as_they_are() {
        let samples: Vec<f64> = history(500).points().map(|point| point.samples).collect();
        assert_eq!(samples, (0..500).map(f64::from).collect::<Vec<_>>());
    }

    #[test]
    fn many_points_are_merged_evenly_and_all_count() {
        for points in [512, 513, 514, 1_023, 1_024, 1_025, 5_000, 100_000] {
            let history = history(points);
            let kept: Vec<Point> = history.points().collect();
            assert!(
                (CAPACITY / 2..=CAPACITY).contains(&kept.len()),
                "{points}: {}",
                kept.len()
            );
            let stride = history.stride as f64;
            for (place, point) in kept.iter().enumerate() {
                let middle = place as f64 * stride + (stride - 1.0) / 2.0;
                assert_eq!((point.samples, point.loss), (middle, 1.0 - middle));
            }
            assert_eq!(kept.len() as u64 * history.stride + history.pending_count, points);
        }
    }
}
