//! Deals the samples of one epoch to the slots.

use protocol::job::split::Split;

use super::allot::slots_of_classes;
use super::classes::Classes;

/// Deals samples to worker slots: returns the slot of each sample of `order`, position by position.
///
/// The number of samples of a slot, and of each class where the split minds classes, does not depend on the order: the
/// order only decides which samples these are.
pub(super) fn deal(split: Split, order: &[u32], classes: &Classes, slots: usize) -> Vec<usize> {
    match split {
        Split::Random => by_position(order.len(), slots),
        Split::Equal => class_by_class(order, classes, slots),
        Split::Class => to_own_slots(order, classes, slots),
    }
}

/// Deals samples without regard to classes: cuts the order into one run of samples per slot, whose lengths differ by at
/// most one.
fn by_position(samples: usize, slots: usize) -> Vec<usize> {
    let slot = |position| position as u64 * slots as u64 / samples as u64;
    (0..samples).map(|position| slot(position) as usize).collect()
}

/// Deals each class in turn, one sample to each slot after the other.
///
/// Each class begins with the slot after the one at which the last class ended. So the remainders of the classes go
/// round, and the totals of the slots differ by at most one as well.
fn class_by_class(order: &[u32], classes: &Classes, slots: usize) -> Vec<usize> {
    let mut dealt_before = 0;
    let mut next: Vec<usize> = classes
        .sizes()
        .iter()
        .map(|&size| {
            let first = dealt_before % slots;
            dealt_before += size as usize;
            first
        })
        .collect();
    order
        .iter()
        .map(|&sample| {
            let next = &mut next[classes.of(sample)];
            let slot = *next;
            *next = (slot + 1) % slots;
            slot
        })
        .collect()
}

/// Deals the samples of each class to the slots that the class is reserved for, one after the other.
fn to_own_slots(order: &[u32], classes: &Classes, slots: usize) -> Vec<usize> {
    let own = slots_of_classes(classes.sizes(), slots);
    let mut next: Vec<usize> = own.iter().map(|range| range.start).collect();
    order
        .iter()
        .map(|&sample| {
            let class = classes.of(sample);
            let slot = next[class];
            next[class] = if slot + 1 < own[class].end {
                slot + 1
            } else {
                own[class].start
            };
            slot
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_cuts_by_position() {
        let classes = Classes::new(&[0; 5]);
        let slots = deal(Split::Random, &[4, 2, 0, 1, 3], &classes, 2);
        assert_eq!(slots, [0, 0, 0, 1, 1]);
    }

    #[test]
    fn equal_hands_the_remainders_round() {
        // Three samples of class 0 leave a remainder for slot 0; that of class 1 must go to slot 1.
        let classes = Classes::new(&[0, 0, 0, 1, 1, 1]);
        let slots = deal(Split::Equal, &[0, 3, 1, 4, 2, 5], &classes, 2);
        assert_eq!(slots, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn class_keeps_classes_apart() {
        let classes = Classes::new(&[8, 5, 8, 5]);
        assert_eq!(deal(Split::Class, &[0, 1, 2, 3], &classes, 2), [1, 0, 1, 0]);
        assert_eq!(deal(Split::Class, &[0, 1, 2, 3], &classes, 4), [2, 0, 3, 1]);
    }
}
