//! Gathers the pieces that several workers make of one result, until all are there. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::trainer::PipelineViolation;

/// Collects the pieces of a result (such as activations) that several workers of a pipeline each compute a part of,
/// until all have come.
#[derive(Debug)]
pub(super) struct Gathering<K> {
    /// For each result that several workers compute parts of, the parts that have come, by worker; `None` for a missing
    /// one. The list stays, empty, once all were taken, so that a repeated part is refused.
    waiting: BTreeMap<K, Vec<Option<Vec<f32>>>>,
}

impl<K> Default for Gathering<K> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Copy> Gathering<K> {
    /// Takes a worker's piece of a result that `workers` workers make. Returns all pieces, in the order of the workers,
    /// if this was the last.
    pub(super) fn take(
        &mut self,
        of: K,
        from: usize,
        workers: usize,
        piece: Vec<f32>,
    ) -> Result<Option<Vec<Vec<f32>>>, PipelineViolation> {
        let pieces = self.waiting.entry(of).or_insert_with(|| vec![None; workers]);
        match pieces.get_mut(from) {
            Some(place @ None) => *place = Some(piece),
            Some(Some(_)) | None => return Err(PipelineViolation::Repeated),
        }
        if pieces.iter().any(Option::is_none) {
            return Ok(None);
        }
        Ok(Some(std::mem::take(pieces).into_iter().flatten().collect()))
    }

    /// Returns the number of results of which at least one worker's part has come.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Drops the collected parts of all results for which `is_kept` returns false.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&K) -> bool) {
        self.waiting.retain(|of, _| is_kept(of));
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// Joins the columns that several workers have computed of the same rows into whole rows.
pub(super) fn side_by_side(mut pieces: Vec<Vec<f32>>, shares: &[Range<usize>]) -> Vec<f32> {
    if pieces.len() < 2 {
        return pieces.pop().unwrap_or_default();
    }
    let width = shares.last().map_or(0, |share| share.end);
    let rows = pieces.first().map_or(0, |first| first.len() / shares[0].len().max(1));
    let mut all = vec![0.0; rows * width];
    for (piece, share) in pieces.iter().zip(shares) {
        for (to, from) in all.chunks_exact_mut(width).zip(piece.chunks_exact(share.len())) {
            to[share.clone()].copy_from_slice(from);
        }
    }
    all
}

/// Returns the columns `share` of rows that are `width` values wide.
pub(super) fn columns<'a>(rows: &'a [f32], width: usize, share: &Range<usize>) -> Cow<'a, [f32]> {
    if share.len() == width {
        return Cow::Borrowed(rows);
    }
    let mut some = Vec::with_capacity(rows.len() / width.max(1) * share.len());
    for row in rows.chunks_exact(width) {
        some.extend_from_slice(&row[share.clone()]);
    }
    Cow::Owned(some)
}

/// Adds up the gradients of several workers, in the order of the workers, so that sums are the same every time.
pub(super) fn added_up(pieces: Vec<Vec<f32>>) -> Vec<f32> {
    let mut pieces = pieces.into_iter();
    let mut sum = pieces.next().unwrap_or_default();
    for piece in pieces {
        for (sum, number) in sum.iter_mut().zip(piece) {
            *sum += number;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole_in_whatever_order_they_come() {
        let rows: Vec<f32> = (0..20u8).map(f32::from).collect();
        let shares = [0..2, 2..5];
        let pieces = shares.clone().map(|share| columns(&rows, 5, &share).into_owned());
        let mut gathering = Gathering::default();
        let refused = Err(PipelineViolation::Repeated);
        assert_eq!(gathering.take(7, 1, 2, pieces[1].clone()), Ok(None));
        assert_eq!(
            gathering.take(8, 0, 2, vec![1.0]),
            Ok(None),
            "a piece of another tensor must not complete this one"
        );
        for from in [1, 2] {
            assert_eq!(
                gathering.take(7, from, 2, vec![1.0]),
                refused,
                "a piece must come once, and from a worker that has one"
            );
        }
        let all = gathering.take(7, 0, 2, pieces[0].clone()).unwrap().unwrap();
        assert_eq!(side_by_side(all, &shares), rows);
        assert_eq!(
            gathering.take(7, 0, 2, vec![1.0]),
            refused,
            "complete tensors must stay complete"
        );
        assert_eq!(gathering.take(9, 0, 1, rows.clone()), Ok(Some(vec![rows.clone()])));
        gathering.retain(|&of| of != 9);
        assert_eq!(gathering.take(9, 0, 1, rows.clone()), Ok(Some(vec![rows])));
        assert_eq!(added_up(vec![vec![1.0, 2.0], vec![3.0, -2.0]]), [4.0, 0.0]);
    }
}
