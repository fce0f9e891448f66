//! Properties of every [`ShardPlan`], checked over random labels, splits and numbers of slots.

use std::collections::BTreeMap;

use proptest::prelude::*;

use protocol::job::split::{SHARDS_PER_SLOT, Split};

use super::ShardPlan;

#[derive(Clone, Debug)]
struct Case {
    split: Split,
    seed: u64,
    epoch: u32,
    labels: Vec<u32>,
    slots: usize,
    balanced: bool,
}

impl Case {
    fn plan(&self) -> ShardPlan {
        self.plan_of(self.seed, self.epoch)
    }

    fn plan_of(&self, seed: u64, epoch: u32) -> ShardPlan {
        ShardPlan::new(self.split, seed, epoch, epoch, &self.labels, self.slots, self.balanced)
    }

    /// Returns the number of samples of each label in a list of samples.
    fn mix(&self, samples: &[u32]) -> BTreeMap<u32, usize> {
        let mut mix = BTreeMap::new();
        for &sample in samples {
            *mix.entry(self.labels[sample as usize]).or_default() += 1;
        }
        mix
    }

    /// Returns, for each worker slot, the labels of the samples that it trains, with the number of samples of each.
    fn mixes(&self) -> Vec<BTreeMap<u32, usize>> {
        let plan = self.plan();
        (0..self.slots).map(|slot| self.mix(&samples_of(&plan, slot))).collect()
    }
}

/// Generates test cases with the given splits, with few or many samples, classes and slots.
fn cases(split: impl Strategy<Value = Split>) -> impl Strategy<Value = Case> {
    // Labels far apart must work as well as labels from zero.
    let labels = (1u32..12, 1u32..1000).prop_flat_map(|(classes, step)| {
        prop::collection::vec((0..classes).prop_map(move |class| class * step), 1..400)
    });
    (split, any::<u64>(), any::<u32>(), labels, 1usize..20, any::<bool>()).prop_map(
        |(split, seed, epoch, labels, slots, balanced)| Case {
            split,
            seed,
            epoch,
            labels,
            slots,
            balanced,
        },
    )
}

fn any_split() -> impl Strategy<Value = Split> {
    prop::sample::select(Split::ALL.to_vec())
}

fn samples_of(plan: &ShardPlan, slot: usize) -> Vec<u32> {
    plan.shards_of(slot)
        .flat_map(|shard| plan.samples(shard).to_vec())
        .collect()
}

/// Returns the difference between the largest and the smallest number.
fn spread(numbers: impl Iterator<Item = usize> + Clone) -> usize {
    numbers.clone().max().unwrap_or(0) - numbers.min().unwrap_or(0)
}

proptest! {
    #[test]
    fn every_sample_is_in_exactly_one_shard(case in cases(any_split())) {
        let plan = case.plan();
        prop_assert_eq!(plan.epoch(), case.epoch);
        prop_assert_eq!(plan.len(), case.labels.len());
        prop_assert_eq!(plan.shard_count(), case.slots as u32 * SHARDS_PER_SLOT);
        let mut all: Vec<u32> = (0..case.slots).flat_map(|slot| samples_of(&plan, slot)).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..case.labels.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn owners_and_shards_agree(case in cases(any_split())) {
        let plan = case.plan();
        let listed: Vec<u32> = (0..case.slots).flat_map(|slot| plan.shards_of(slot)).collect();
        prop_assert_eq!(listed, (0..plan.shard_count()).collect::<Vec<_>>());
        for slot in 0..case.slots {
            prop_assert!(plan.shards_of(slot).all(|shard| plan.owner(shard) == slot));
        }
    }

    #[test]
    fn plans_are_functions_of_their_arguments(case in cases(any_split())) {
        prop_assert_eq!(case.plan(), case.plan());
    }

    #[test]
    fn shard_lengths_are_the_same_in_every_epoch(case in cases(any_split()), epoch: u32, seed: u64) {
        let (one, other) = (case.plan(), case.plan_of(seed, epoch));
        for shard in 0..one.shard_count() {
            prop_assert_eq!(one.samples(shard).len(), other.samples(shard).len());
        }
    }

    #[test]
    fn shards_of_a_slot_differ_by_at_most_one(case in cases(any_split())) {
        let plan = case.plan();
        for slot in 0..case.slots {
            let lengths: Vec<usize> =
                plan.shards_of(slot).map(|shard| plan.samples(shard).len()).collect();
            prop_assert!(spread(lengths.iter().copied()) <= 1);
        }
    }

    #[test]
    fn random_shards_and_slots_differ_by_at_most_one(case in cases(Just(Split::Random))) {
        let plan = case.plan();
        prop_assert!(spread((0..plan.shard_count()).map(|shard| plan.samples(shard).len())) <= 1);
        prop_assert!(spread((0..case.slots).map(|slot| samples_of(&plan, slot).len())) <= 1);
    }

    #[test]
    fn equal_slots_differ_by_at_most_one_in_each_class_and_in_total(
        case in cases(Just(Split::Equal)),
    ) {
        let mixes = case.mixes();
        for label in &case.labels {
            let of_label = mixes.iter().map(|mix| mix.get(label).copied().unwrap_or(0));
            prop_assert!(spread(of_label) <= 1);
        }
        prop_assert!(spread(mixes.iter().map(|mix| mix.values().sum())) <= 1);
    }

    #[test]
    fn class_slots_have_classes_of_their_own(case in cases(Just(Split::Class))) {
        let mixes = case.mixes();
        let sizes = case.mix(&(0..case.labels.len() as u32).collect::<Vec<_>>());
        if sizes.len() >= case.slots {
            for label in sizes.keys() {
                prop_assert_eq!(mixes.iter().filter(|mix| mix.contains_key(label)).count(), 1);
            }
        } else {
            prop_assert!(mixes.iter().all(|mix| mix.len() <= 1));
            for label in sizes.keys() {
                let shares = mixes.iter().filter_map(|mix| mix.get(label).copied());
                prop_assert!(spread(shares) <= 1);
            }
        }
    }

    #[test]
    fn class_slots_keep_their_classes(case in cases(Just(Split::Class)), epoch: u32, seed: u64) {
        let other = Case { seed, epoch, ..case.clone() };
        prop_assert_eq!(case.mixes(), other.mixes());
    }

    #[test]
    fn balancing_only_reorders_within_shards(case in cases(any_split())) {
        let plain = Case { balanced: false, ..case.clone() }.plan();
        let balanced = Case { balanced: true, ..case }.plan();
        for shard in 0..plain.shard_count() {
            let sorted = |plan: &ShardPlan| {
                let mut samples = plan.samples(shard).to_vec();
                samples.sort_unstable();
                samples
            };
            prop_assert_eq!(sorted(&plain), sorted(&balanced));
        }
    }

    /// Up to any place in a balanced shard, each class has at most half a sample more or less than its proportion in
    /// the whole shard requires. So the place itself may be off by half a sample for each class.
    #[test]
    fn every_beginning_of_a_balanced_shard_has_the_mix_of_the_shard(case in cases(any_split())) {
        let plan = Case { balanced: true, ..case.clone() }.plan();
        for shard in 0..plan.shard_count() {
            let samples = plan.samples(shard);
            let whole = case.mix(samples);
            for end in 0..=samples.len() {
                let mix = case.mix(&samples[..end]);
                for (label, &count) in &whole {
                    let stage = count as f64 / samples.len() as f64;
                    let seen = mix.get(label).copied().unwrap_or(0) as f64;
                    let allowed = 0.5 + whole.len() as f64 / 2.0 * stage + 1e-6;
                    prop_assert!((seen - stage * end as f64).abs() <= allowed);
                }
            }
        }
    }
}
