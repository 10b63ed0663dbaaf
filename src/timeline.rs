//! A limiter's own time: nanoseconds since a little before it was built, so that cells need fewer bits than clocks.

use core::time::Duration;

/// How far time may run after a limiter was built unless told otherwise: 2^58 ns, some nine years.
pub(crate) const DEFAULT_HORIZON: Duration = Duration::from_nanos(1 << 58);

/// Maps the readings of a clock to `0..=end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    zero: u64,
    end: u64,
}

impl Timeline {
    /// A timeline that reaches `horizon` beyond the reading `now`, and a sixteenth of that before it, for clocks that
    /// step back.
    pub(crate) fn new(now: u64, horizon: Duration) -> Self {
        let ahead = u64::try_from(horizon.as_nanos()).unwrap_or(u64::MAX);
        let zero = now.saturating_sub(ahead / 16);
        let end = (now - zero).saturating_add(ahead);
        Self { zero, end }
    }

    /// The longest horizon of which a timeline ends no later than `end` nanoseconds, whatever the clock reads.
    pub(crate) fn horizon(end: u128) -> Duration {
        Duration::from_nanos(u64::try_from(end / 17 * 16).unwrap_or(u64::MAX))
    }

    /// The clock reading `reading` on this timeline. Readings from outside stand at its ends: time that stands still
    /// refills nothing, so a clock that leaves the timeline never admits more.
    #[inline]
    pub(crate) fn at(&self, reading: u64) -> u64 {
        reading.saturating_sub(self.zero).min(self.end)
    }

    /// The clock's reading at a moment of this timeline.
    pub(crate) fn reading(&self, moment: u64) -> u64 {
        self.zero.saturating_add(moment)
    }

    /// The clock's reading where this timeline begins.
    pub(crate) fn zero(&self) -> u64 {
        self.zero
    }

    /// The last moment of this timeline.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }
}
