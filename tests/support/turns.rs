//! Turns by the definition of a bucket.

/// When each of those who came, at a moment and for a cost, goes: first come, first served. And the theoretical arrival time
/// after them.
pub fn turns(interval: u64, burst: u64, came: &[(u64, u64)]) -> (Vec<u64>, u64) {
    let mut tat = 0;
    let times = came.iter().map(|&(at, cost)| {
        tat = at.max(tat) + cost * interval;
        at.max(tat.saturating_sub(burst * interval))
    });
    (times.collect(), tat)
}
