//! Allots classes to slots in the split by class.
//!
//! The allotment depends on the class sizes alone, not on seed or epoch: a slot keeps its classes for the whole run.

use std::cmp::Reverse;
use std::ops::Range;

/// Returns, for each class of samples, the range of worker slots that get its samples. Every range has at least one
/// slot.
pub(super) fn slots_of_classes(sizes: &[u32], slots: usize) -> Vec<Range<usize>> {
    if sizes.len() >= slots {
        whole_classes(sizes, slots)
    } else {
        shared_classes(sizes, slots)
    }
}

/// Gives each class whole to one slot: the largest class first, always to the slot with the fewest samples so far.
fn whole_classes(sizes: &[u32], slots: usize) -> Vec<Range<usize>> {
    let mut largest_first: Vec<usize> = (0..sizes.len()).collect();
    // A stable sort leaves classes of one size in the order of their numbers.
    largest_first.sort_by_key(|&class| Reverse(sizes[class]));
    let mut loads = vec![0u64; slots];
    let mut allotted = vec![0..0; sizes.len()];
    for class in largest_first {
        // Of several smallest loads, `min_by_key` takes the first.
        if let Some(slot) = (0..slots).min_by_key(|&slot| loads[slot]) {
            loads[slot] += u64::from(sizes[class]);
            allotted[class] = slot..slot + 1;
        }
    }
    allotted
}

/// Gives each class of samples several worker slots of its own: one each, and every further slot to the class whose
/// slots have most samples.
fn shared_classes(sizes: &[u32], slots: usize) -> Vec<Range<usize>> {
    let mut shares = vec![1usize; sizes.len()];
    for _ in sizes.len()..slots {
        // Compares size / share without dividing. Of equals, the reversed number makes the lowest class win.
        let busiest = (0..sizes.len()).max_by(|&a, &b| {
            let a_times_b = u64::from(sizes[a]) * shares[b] as u64;
            let b_times_a = u64::from(sizes[b]) * shares[a] as u64;
            a_times_b.cmp(&b_times_a).then(b.cmp(&a))
        });
        if let Some(class) = busiest {
            shares[class] += 1;
        }
    }
    let mut first = 0;
    shares
        .into_iter()
        .map(|share| {
            let range = first..first + share;
            first = range.end;
            range
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_classes_go_to_the_emptiest_slots() {
        // 9 to slot 0 and 7 to slot 1; then 6 to slot 1, which has less; then 2 to slot 0, 9 against 13.
        assert_eq!(slots_of_classes(&[6, 9, 7, 2], 2), [1..2, 0..1, 1..2, 0..1]);
    }

    #[test]
    fn ties_go_to_the_lowest_slot_and_the_lowest_class() {
        assert_eq!(slots_of_classes(&[5, 5, 5], 3), [0..1, 1..2, 2..3]);
        assert_eq!(slots_of_classes(&[5, 5], 3), [0..2, 2..3]);
    }

    #[test]
    fn more_slots_than_classes_are_shared_in_proportion() {
        assert_eq!(slots_of_classes(&[30, 10, 60], 10), [0..3, 3..4, 4..10]);
    }

    #[test]
    fn no_classes_take_no_slots() {
        assert!(slots_of_classes(&[], 4).is_empty());
    }

    proptest! {
        #[test]
        fn no_slot_idles_and_no_class_is_left_out(
            sizes in prop::collection::vec(1u32..1000, 1..20),
            slots in 1usize..30,
        ) {
            let allotted = slots_of_classes(&sizes, slots);
            prop_assert_eq!(allotted.len(), sizes.len());
            prop_assert!(allotted.iter().all(|range| !range.is_empty() && range.end <= slots));
            let mut used = vec![0; slots];
            for slot in allotted.iter().cloned().flatten() {
                used[slot] += 1;
            }
            prop_assert!(used.iter().all(|&classes| classes > 0));
            if slots > sizes.len() {
                prop_assert!(used.iter().all(|&classes| classes == 1));
            } else {
                prop_assert!(allotted.iter().all(|range| range.len() == 1));
            }
        }

        #[test]
        fn whole_classes_differ_by_at_most_the_largest_class(
            sizes in prop::collection::vec(1u32..1000, 1..30),
            slots in 1usize..10,
        ) {
            prop_assume!(sizes.len() >= slots);
            let mut loads = vec![0; slots];
            for (range, size) in slots_of_classes(&sizes, slots).iter().zip(&sizes) {
                loads[range.start] += size;
            }
            let spread = loads.iter().max().unwrap() - loads.iter().min().unwrap();
            prop_assert!(spread <= *sizes.iter().max().unwrap());
        }
    }
}
