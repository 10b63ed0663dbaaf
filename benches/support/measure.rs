//! Keys in random order, and times that hold on a noisy machine.

use std::time::Duration;

use super::contender::{Contender, Key};

/// How many keys each thread goes through before it begins again.
const LIST: usize = 1 << 20;

/// Knuth's MMIX generator.
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1))
    }

    /// 32 random bits: the upper half, as the lower bits of such a generator are poor.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() * end) >> 32
    }

    fn fraction(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 32) as f64
    }
}

/// Which keys are asked for how often.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    Uniform,
    /// Each thread has keys of its own, none of them more often than others.
    Apart,
    /// The n-th key 1/n times as often as the first.
    Zipf,
}

/// A list of keys for each thread, made before the clock starts, so that making keys is no part of what is measured.
pub fn lists<K: Key>(keys: u64, draw: Draw, threads: u64) -> Vec<Vec<K>> {
    let shares = if draw == Draw::Zipf { zipf(keys) } else { Vec::new() };
    let list = |thread| {
        let mut random = Random::seeded(thread);
        let mut number = || match draw {
            Draw::Uniform => random.below(keys),
            Draw::Apart => random.below(keys / threads) * threads + thread,
            Draw::Zipf => pick(&shares, random.fraction()),
        };
        (0..LIST).map(|_| K::nth(number())).collect()
    };
    (0..threads).map(list).collect()
}

/// For each key the share of all checks that goes to it and those before it.
fn zipf(keys: u64) -> Vec<f64> {
    let mut sum = 0.0;
    let weights = (1..=keys).map(|rank| 1.0 / rank as f64);
    let sums: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    sums.into_iter().map(|share| share / sum).collect()
}

fn pick(shares: &[f64], fraction: f64) -> u64 {
    shares.partition_point(|&share| share <= fraction).min(shares.len() - 1) as u64
}

/// Makes each key known.
pub fn fill<K: Key>(contender: &dyn Contender<K>, keys: u64) {
    (0..keys).for_each(|number| _ = contender.check(&K::nth(number)));
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    f64::midpoint(values[last / 2], values[values.len() / 2])
}

/// Measures all of them in turn, `rounds` times over, and takes the median of each: what slows the machine down for a
/// while slows all of them.
pub fn in_turns<T>(contenders: &[T], rounds: usize, measure: impl Fn(&T) -> f64) -> Vec<f64> {
    let mut values = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for (values, contender) in values.iter_mut().zip(contenders) {
            values.push(measure(contender));
        }
    }
    values.into_iter().map(median).collect()
}

/// Nanoseconds a check, as each thread sees it.
pub fn cost<K: Key>(contender: &dyn Contender<K>, lists: &[Vec<K>], checks: usize) -> f64 {
    nanos(contender.run(lists, checks)) / checks as f64
}

pub fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// The memory of this process that is in use; nothing where the system does not tell.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}
