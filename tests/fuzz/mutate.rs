//! Generates fuzz inputs by mutating entries of a corpus.

use protocol::rng::CounterRng;

/// Largest input in bytes; longer inputs only take longer.
const LENGTH_MAX: usize = 64 << 10;

/// Envelope of a format around its contents. The envelope is repaired after most mutations, because an invalid one is
/// refused before the contents are read.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// A format without an envelope.
    Plain,
    /// A format that ends with a CRC-32 of everything before it.
    Checksum,
    /// A format that begins with one byte of kind and four of length, little-endian.
    Frame,
    /// A format that begins with eight bytes for the length of the JSON text that follows.
    SafeTensors,
    /// A format that begins with one byte of kind, two of version and two of length, big-endian; inside is a handshake
    /// message with one byte of kind and three of length.
    TlsRecord,
}

impl Form {
    fn put_right(self, bytes: &mut [u8]) {
        match self {
            Self::Plain => {}
            Self::Checksum => {
                if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
                    *crc = crc32fast::hash(body).to_le_bytes();
                }
            }
            Self::Frame => {
                if let Some((header, contents)) = bytes.split_first_chunk_mut::<5>() {
                    header[1..].copy_from_slice(&(contents.len() as u32).to_le_bytes());
                }
            }
            Self::SafeTensors => {
                if let Some((length, rest)) = bytes.split_first_chunk_mut::<8>() {
                    *length = (json_length(rest) as u64).to_le_bytes();
                }
            }
            Self::TlsRecord => {
                if let Some((record, message)) = bytes.split_first_chunk_mut::<5>() {
                    record[3..].copy_from_slice(&(message.len() as u16).to_be_bytes());
                    if let Some((header, contents)) = message.split_first_chunk_mut::<4>() {
                        header[1..].copy_from_slice(&(contents.len() as u32).to_be_bytes()[1..]);
                    }
                }
            }
        }
    }
}

/// Returns the length of the JSON object that the bytes begin with, including the spaces that safetensors pads it with.
fn json_length(bytes: &[u8]) -> usize {
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_text = !in_text,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text && depth == 1 => {
                let spaces = bytes[at + 1..].iter().take_while(|&&byte| byte == b' ').count();
                return at + 1 + spaces;
            }
            b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    bytes.len()
}

/// Returns an input: usually a mutated entry of the corpus, sometimes random bytes.
pub(crate) fn mutated(corpus: &[Vec<u8>], form: Form, random: &mut CounterRng) -> Vec<u8> {
    let mut bytes = if chance(random, 20) {
        noise(random, 600)
    } else {
        pick(random, corpus).clone()
    };
    // Usually few mutations, so that much of a valid input stays valid.
    let changes = 1 << below(random, 4);
    for _ in 0..=below(random, changes) {
        change(&mut bytes, corpus, random);
        bytes.truncate(LENGTH_MAX);
    }
    if !chance(random, 8) {
        form.put_right(&mut bytes);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut CounterRng) {
    match below(random, 13) {
        0 | 1 => {
            let bit = 1 << below(random, 8);
            set(bytes, random, |byte| byte ^ bit);
        }
        2 => {
            let value = random.next_u64() as u8;
            set(bytes, random, |_| value);
        }
        3 => {
            let value = *pick(random, &[0, 1, 0x7f, 0x80, 0xff]);
            set(bytes, random, |_| value);
        }
        4 => {
            // Off by one or two, as wrong counts and indices are.
            let step = *pick(random, &[1, 2, 255, 254]);
            set(bytes, random, |byte| byte.wrapping_add(step));
        }
        5 => bytes.truncate(below(random, bytes.len() + 1)),
        6 => bytes.extend(noise(random, 40)),
        7 => {
            let range = range(bytes, random);
            bytes.drain(range);
        }
        8 => repeat(bytes, random),
        9 => {
            // Inserts a piece of another entry, which may join the front of one to the back of another.
            let other = pick(random, corpus);
            let piece = other[range(other, random)].to_vec();
            let place = range(bytes, random);
            bytes.splice(place, piece);
        }
        10 => {
            let value = varint(random);
            overwrite(bytes, random, &value);
        }
        11 => {
            let value = fixed(random);
            overwrite(bytes, random, &value);
        }
        _ => number(bytes, random),
    }
}

fn below(random: &mut CounterRng, bound: usize) -> usize {
    random.below(bound as u64) as usize
}

fn chance(random: &mut CounterRng, one_in: usize) -> bool {
    below(random, one_in) == 0
}

fn pick<'a, T>(random: &mut CounterRng, items: &'a [T]) -> &'a T {
    &items[below(random, items.len())]
}

fn noise(random: &mut CounterRng, most: usize) -> Vec<u8> {
    let length = below(random, most + 1);
    (0..length).map(|_| random.next_u64() as u8).collect()
}

fn set(bytes: &mut [u8], random: &mut CounterRng, value: impl Fn(u8) -> u8) {
    if !bytes.is_empty() {
        // Lengths and kinds are in the first bytes.
        let reach = if chance(random, 3) {
            bytes.len().min(24)
        } else {
            bytes.len()
        };
        let at = below(random, reach);
        bytes[at] = value(bytes[at]);
    }
}

fn range(bytes: &[u8], random: &mut CounterRng) -> std::ops::Range<usize> {
    let (one, other) = (below(random, bytes.len() + 1), below(random, bytes.len() + 1));
    one.min(other)..one.max(other)
}

/// Repeats a piece many times, which nests deeply or makes lists long.
fn repeat(bytes: &mut Vec<u8>, random: &mut CounterRng) {
    let whole = range(bytes, random);
    let piece = bytes[whole.start..whole.end.min(whole.start + 16)].to_vec();
    let times = 1usize << below(random, 12);
    bytes.splice(whole.start..whole.start, piece.repeat(times));
}

fn overwrite(bytes: &mut Vec<u8>, random: &mut CounterRng, value: &[u8]) {
    let at = below(random, bytes.len() + 1);
    // Replaces the same number of bytes, or one byte: a short number becomes long.
    let replaced = if chance(random, 2) { value.len() } else { 1 };
    let end = bytes.len().min(at + replaced);
    bytes.splice(at..end, value.iter().copied());
}

/// Returns a number at a power of two, where encodings change their length or meaning.
fn border(random: &mut CounterRng) -> u64 {
    let power = 1u64 << below(random, 64);
    match below(random, 4) {
        0 => power,
        1 => power - 1,
        2 => power.wrapping_add(1),
        _ => power.wrapping_neg(),
    }
}

/// Encodes a random number as a varint of postcard.
fn varint(random: &mut CounterRng) -> Vec<u8> {
    let mut rest = border(random);
    let mut bytes = Vec::new();
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    if chance(random, 16) {
        // A varint without an end.
        bytes = vec![0xff; 12];
    }
    bytes
}

fn fixed(random: &mut CounterRng) -> Vec<u8> {
    let value = border(random);
    let width = 1 << below(random, 4);
    if chance(random, 2) {
        value.to_le_bytes()[..width].to_vec()
    } else {
        value.to_be_bytes()[8 - width..].to_vec()
    }
}

/// Replaces a number in a text by another one.
fn number(bytes: &mut Vec<u8>, random: &mut CounterRng) {
    let from = below(random, bytes.len() + 1);
    let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit).map(|at| from + at) else {
        return;
    };
    let digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = match below(random, 4) {
        0 => border(random).to_string(),
        1 => (border(random) as i64).to_string(),
        2 => f64::from_bits(random.next_u64()).to_string(),
        _ => pick(
            random,
            &["0", "-0", "1e400", "-1e400", "1e-400", "nan", "inf", "0.1", "1e9", ""],
        )
        .to_string(),
    };
    bytes.splice(start..start + digits, text.into_bytes());
}
