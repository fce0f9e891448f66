//! Access to the memory of a running process: reads its size, and flips bits in it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::cluster::kill;

/// Number of consecutive weights by which a replica is recognised in a process's memory.
const WINDOW: usize = 8;

/// Returns the resident memory of a process in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Flips one bit in each of `flips` weights of a process's replica. `weights` are the replica's weights as four bytes
/// each; some of them may have changed since. All copies of the weights in the process are hit, except for such as were
/// made during the search.
pub(crate) fn flip_bits(pid: u32, weights: &[[u8; 4]], bit: usize, flips: usize) {
    let memory = open(pid);
    // The process runs on during the search: a node takes a worker that is paused for as long as that for stuck.
    let found = copies(&memory, pid, weights);
    let mut places: Vec<(usize, Vec<u64>)> = found.into_iter().collect();
    // A weight that is found in most copies is also in the replica.
    places.sort_by_key(|(index, copies)| (std::cmp::Reverse(copies.len()), *index));
    let most = places.first().map_or(0, |(_, copies)| copies.len());
    kill("-STOP", pid);
    let mut flipped = 0;
    for (index, copies) in &places {
        // The weight, or the array that held a copy of it, may be gone.
        let is_there = |address: &u64| {
            let mut word = [0; 4];
            memory.read_exact_at(&mut word, *address).is_ok() && word == weights[*index]
        };
        let there: Vec<u64> = copies.iter().copied().filter(is_there).collect();
        if flipped == flips || there.is_empty() || 2 * there.len() < most {
            continue;
        }
        for address in there {
            let address = address + bit as u64 / 8;
            let mut byte = [0];
            memory.read_exact_at(&mut byte, address).unwrap();
            byte[0] ^= 1 << (bit % 8);
            memory.write_all_at(&byte, address).unwrap();
        }
        flipped += 1;
    }
    kill("-CONT", pid);
    assert_eq!(flipped, flips, "the replica of process {pid} is not found");
}

/// Returns the addresses at which a process holds copies of weights, by the weight's index.
fn copies(memory: &File, pid: u32, weights: &[[u8; 4]]) -> HashMap<usize, Vec<u64>> {
    let windows: HashMap<[u8; 4], usize> = weights
        .windows(WINDOW)
        .enumerate()
        .step_by(WINDOW)
        // Zeros are everywhere in memory.
        .filter(|(_, window)| window.iter().all(|weight| *weight != [0; 4]))
        .map(|(index, window)| (window[0], index))
        .collect();
    // Most words are sorted out by half of their bytes.
    let half = |word: &[u8; 4]| usize::from(u16::from_ne_bytes([word[0], word[1]]));
    let mut may_begin = vec![false; 1 << 16];
    for word in windows.keys() {
        may_begin[half(word)] = true;
    }
    let mut found: HashMap<usize, Vec<u64>> = HashMap::new();
    for (start, bytes) in writable(pid, memory) {
        let words = bytes.as_chunks::<4>().0;
        for (at, word) in words.iter().enumerate() {
            if may_begin[half(word)]
                && let Some(&index) = windows.get(word)
                && words[at..].starts_with(&weights[index..index + WINDOW])
            {
                found.entry(index).or_default().push(start + 4 * at as u64);
            }
        }
    }
    found
}

/// Flips a bit `distance` bytes behind each occurrence of `bytes` in a process's memory, at most `most` times. Returns
/// the number of flipped bits.
pub(crate) fn flip_behind(pid: u32, bytes: &[u8], distance: usize, most: usize) -> usize {
    let memory = open(pid);
    let mut hit = 0;
    for (start, held) in writable(pid, &memory) {
        let found = held.windows(bytes.len() + distance + 1).enumerate();
        for (at, window) in found.filter(|(_, window)| window.starts_with(bytes)).take(most - hit) {
            let flipped = [window[window.len() - 1] ^ 4];
            memory
                .write_all_at(&flipped, start + (at + window.len() - 1) as u64)
                .unwrap();
            hit += 1;
        }
    }
    hit
}

/// Opens the memory of a process for reading and writing.
fn open(pid: u32) -> File {
    let mut options = OpenOptions::new();
    let memory = options.read(true).write(true).open(format!("/proc/{pid}/mem"));
    memory.unwrap()
}

/// Returns the writable anonymous memory of a process, as start addresses and contents.
fn writable(pid: u32, memory: &File) -> Vec<(u64, Vec<u8>)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let areas = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let ours = fields.next()?.starts_with("rw") && fields.nth(2) == Some("0");
        let mut bytes = vec![0; (end - start) as usize];
        (ours && memory.read_exact_at(&mut bytes, start).is_ok()).then_some((start, bytes))
    });
    areas.collect()
}
