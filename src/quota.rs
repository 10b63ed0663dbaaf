//! What a limit allows: [`Quota`] and the [`Algorithm`] that enforces it.

mod text;

use alloc::string::String;
use core::error::Error;
use core::fmt;
use core::time::Duration;

/// The longest span that a quota may reach over, in nanoseconds: 2^61, some 73 years.
pub(crate) const MAX_SPAN_NS: u64 = 1 << 61;

/// How a quota is enforced. [`Algorithm::TokenBucket`] is the default.
///
/// The text names (`token-bucket`, …) are those of the quota text form, see [`Quota`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A bucket of `burst` tokens that refills at the quota's rate, kept as one theoretical arrival time (GCRA in its
    /// virtual scheduling form, ITU-T I.371). Admits at most `burst + window / emission interval` in any window.
    #[default]
    TokenBucket,
    /// A queue that units leave one emission interval apart, in which at most `burst` of them wait: what is admitted is
    /// told how long to be held back ([`Decision::delay`](crate::Decision::delay)), and what would have to wait longer
    /// is refused. One unit more than the burst is admitted at once, since the first need not wait.
    LeakyBucket,
    /// A counter that starts again at each multiple of the period on the limiter's clock. Admits up to twice the
    /// limit around a boundary.
    FixedWindow,
    /// The count of this window plus that of the window before, weighted by the part of it that a sliding window
    /// would still cover. Never forgets at a boundary; assumes that the window before was evenly used.
    ///
    /// Two counts share a cell with the number of a window, so the limit can be at most 2^20 - 1 a second or a minute,
    /// 2^22 - 1 an hour, and 2^25 - 1 a day; larger ones fail when the limiter is built.
    SlidingWindowCounter,
    /// The moment of every unit admitted, so that no window of one period ever holds more than the limit: exact, at the
    /// price of 12 bytes more for each key and unit of the limit, and of time in proportion to the limit.
    SlidingWindowLog,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: &[Self] =
        &[Self::TokenBucket, Self::LeakyBucket, Self::FixedWindow, Self::SlidingWindowCounter, Self::SlidingWindowLog];

    /// The name in a quota's text form.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindowCounter => "sliding-window-counter",
            Self::SlidingWindowLog => "sliding-window-log",
        }
    }

    /// Whether a quota with this algorithm may have a burst of its own. Window algorithms have none: their limit is
    /// the most that they admit at once.
    #[must_use]
    pub const fn takes_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many units a key may use in how much time.
///
/// `limit` units a `period`, and at most `burst` of them at once (the limit, if nothing else is said). The time in
/// which one unit comes back, `period / limit`, is the *emission interval*.
///
/// The constructors take any number and can be used in constants; whether the quota is possible is told by
/// [`validate`](Self::validate), which every limiter calls when it is built.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Algorithm, Quota};
///
/// const API: Quota = Quota::per_minute(100).with_burst(20);
/// assert_eq!(API.emission_interval(), Duration::from_millis(600));
///
/// let login = Quota::with_period(5, Duration::from_secs(900)).with_algorithm(Algorithm::FixedWindow);
/// assert!(login.validate().is_ok());
/// ```
///
/// # Text form
///
/// `LIMIT/PERIOD [burst=N] [algorithm=NAME]`, where PERIOD is an optional whole number and one of the units `ns`,
/// `us`, `ms`, `s`, `sec`, `min`, `h`, `d`, and NAME is the name of an [`Algorithm`] (`gcra` stands for
/// `token-bucket`). [`Display`](fmt::Display) writes it and [`FromStr`](std::str::FromStr) reads it:
///
/// ```
/// use tollgate::Quota;
///
/// let quota: Quota = "5/2500ms burst=10".parse()?;
/// assert_eq!((quota.limit(), quota.period().as_millis(), quota.burst()), (5, 2500, 10));
/// assert_eq!(quota.to_string(), "5/2500ms burst=10");
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    period: Duration,
    burst: u64,
    algorithm: Algorithm,
}

impl Quota {
    /// `limit` units a second.
    #[must_use]
    pub const fn per_second(limit: u64) -> Self {
        Self::with_period(limit, Duration::from_secs(1))
    }

    /// `limit` units a minute.
    #[must_use]
    pub const fn per_minute(limit: u64) -> Self {
        Self::with_period(limit, Duration::from_secs(60))
    }

    /// `limit` units an hour.
    #[must_use]
    pub const fn per_hour(limit: u64) -> Self {
        Self::with_period(limit, Duration::from_secs(3_600))
    }

    /// `limit` units a day of 86,400 seconds.
    #[must_use]
    pub const fn per_day(limit: u64) -> Self {
        Self::with_period(limit, Duration::from_secs(86_400))
    }

    /// `limit` units a `period`.
    #[must_use]
    pub const fn with_period(limit: u64, period: Duration) -> Self {
        Self { limit, period, burst: limit, algorithm: Algorithm::TokenBucket }
    }

    /// A token bucket that gives at most `limit` units in any span of `window`, wherever that begins, of which `burst` may
    /// come at once: it refills `limit - burst` a window.
    ///
    /// (A bucket of 100 a minute that also holds 100 gives nearly 200 in its worst minute.) The burst must be less than
    /// the limit, or nothing is left to refill, and [`validate`](Self::validate) objects to a limit of zero. For all of the
    /// limit at once, and never more, take [`Algorithm::SlidingWindowLog`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Quota;
    ///
    /// let strict = Quota::at_most(100, Duration::from_secs(60), 20);
    /// assert_eq!(strict, Quota::per_minute(80).with_burst(20));
    /// ```
    #[must_use]
    pub const fn at_most(limit: u64, window: Duration, burst: u64) -> Self {
        Self::with_period(limit.saturating_sub(burst), window).with_burst(burst)
    }

    /// The same quota with at most `burst` units at once. Only for algorithms that
    /// [take a burst](Algorithm::takes_burst); [`validate`](Self::validate) refuses it elsewhere.
    #[must_use]
    pub const fn with_burst(self, burst: u64) -> Self {
        Self { burst, ..self }
    }

    /// The same quota, enforced by `algorithm`.
    #[must_use]
    pub const fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// The units a period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// The most units that are admitted at once, or that may wait in a leaky bucket; the limit if none was given.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The algorithm that enforces it.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The time in which one unit comes back: the period divided by the limit, rounded up to a nanosecond here (the
    /// limiter itself works with finer ticks). Zero for an impossible quota with a limit of zero.
    #[must_use]
    pub fn emission_interval(&self) -> Duration {
        if self.limit == 0 {
            return Duration::ZERO;
        }
        let nanos = self.period.as_nanos().div_ceil(u128::from(self.limit));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Says whether a limiter can enforce this quota.
    ///
    /// # Errors
    ///
    /// A [`QuotaError`] that says what is impossible, and what would be right: a limit, period or burst of zero; more
    /// than one unit a nanosecond; a burst where the algorithm takes none; a period, or a burst that takes, longer
    /// than 2^61 nanoseconds (73 years) to come back.
    pub fn validate(&self) -> Result<(), QuotaError> {
        let Self { limit, period, burst, algorithm } = *self;
        if limit == 0 {
            return Err(QuotaError::ZeroLimit);
        }
        if period.is_zero() {
            return Err(QuotaError::ZeroPeriod);
        }
        // A leaky bucket in which nothing may wait still lets units out one by one.
        if burst == 0 && algorithm != Algorithm::LeakyBucket {
            return Err(QuotaError::ZeroBurst);
        }
        if !algorithm.takes_burst() && burst != limit {
            return Err(QuotaError::NoBurst { algorithm });
        }
        if period.as_nanos() > u128::from(MAX_SPAN_NS) {
            return Err(QuotaError::PeriodTooLong { period });
        }
        let period_ns = self.period_ns();
        if limit > period_ns {
            return Err(QuotaError::RateTooHigh { limit, period });
        }
        let max_burst = u128::from(MAX_SPAN_NS) * u128::from(limit) / u128::from(period_ns);
        if u128::from(burst) > max_burst {
            let max = u64::try_from(max_burst).unwrap_or(u64::MAX);
            return Err(QuotaError::BurstTooLong { burst, max });
        }
        Ok(())
    }

    /// The period in nanoseconds, saturating; exact for a valid quota.
    pub(crate) fn period_ns(&self) -> u64 {
        u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Why a quota is impossible, or its text unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The limit is zero.
    ZeroLimit,
    /// The period is zero.
    ZeroPeriod,
    /// The burst is zero.
    ZeroBurst,
    /// The algorithm takes no burst, but one other than the limit was given.
    NoBurst {
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// More than one unit a nanosecond, which is the finest that a clock tells.
    RateTooHigh {
        /// The limit.
        limit: u64,
        /// The period.
        period: Duration,
    },
    /// A period of more than 2^61 nanoseconds.
    PeriodTooLong {
        /// The period.
        period: Duration,
    },
    /// A burst that takes more than 2^61 nanoseconds to come back.
    BurstTooLong {
        /// The burst.
        burst: u64,
        /// The largest burst that this rate can have.
        max: u64,
    },
    /// A text that is no quota.
    Text {
        /// What was wrong, with the part of the text that it is about.
        problem: String,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroLimit => f.write_str("the limit is 0; it must be at least 1"),
            Self::ZeroPeriod => f.write_str("the period is 0; it must be at least 1 ns"),
            Self::ZeroBurst => f.write_str("the burst is 0; it must be at least 1"),
            Self::NoBurst { algorithm } => {
                write!(
                    f,
                    "{algorithm} takes no burst: its limit is the most that it admits at once; leave the burst out"
                )
            }
            Self::RateTooHigh { limit, period } => write!(
                f,
                "{limit} in {period:?} is more than one a nanosecond; the limit can be at most {}",
                period.as_nanos()
            ),
            Self::PeriodTooLong { period } => {
                write!(
                    f,
                    "the period of {} s is too long; it can be at most {} s",
                    period.as_secs(),
                    MAX_SPAN_NS / 1_000_000_000
                )
            }
            Self::BurstTooLong { burst, max } => {
                write!(
                    f,
                    "a burst of {burst} would take over 73 years to come back at this rate; it can be at most {max}"
                )
            }
            Self::Text { problem } => {
                write!(f, "{problem}; write a quota as LIMIT/PERIOD [burst=N] [algorithm=NAME], like 100/min")
            }
        }
    }
}

impl Error for QuotaError {}
