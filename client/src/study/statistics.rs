//! Mean and standard deviation of figures. Pure.

/// Mean and deviation of one figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) mean: f64,
    /// Sample standard deviation of a figure; `None` for a single run.
    pub(crate) deviation: Option<f64>,
    pub(crate) count: usize,
}

/// Returns the mean and deviation of figures, or `None` if there are none.
pub(crate) fn summary(figures: &[f64]) -> Option<Summary> {
    let count = figures.len();
    let mean = figures.iter().sum::<f64>() / count as f64;
    let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
    (count > 0).then(|| Summary {
        mean,
        deviation: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
        count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_summed_up() {
        assert_eq!(summary(&[]), None);
        let one = summary(&[3.0]).unwrap();
        assert_eq!((one.mean, one.deviation), (3.0, None));
        let some = summary(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((some.mean, some.deviation, some.count), (2.0, Some(1.0), 3));
    }
}
