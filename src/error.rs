//! What can go wrong: [`BuildError`] when a limiter is built, [`CostError`] when a check asks for the impossible.

use core::error::Error;
use core::fmt;
use core::time::Duration;

use crate::quota::{Algorithm, Quota, QuotaError};

/// Why a limiter could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The quota is impossible.
    Quota(QuotaError),
    /// The algorithm's counts do not fit into a cell of 62 bits beside the numbers of its windows.
    LimitTooLarge {
        /// The algorithm.
        algorithm: Algorithm,
        /// The limit that was asked for.
        limit: u64,
        /// The largest limit that fits with this period and horizon.
        largest: u64,
    },
    /// The horizon is so long that a state cannot tell its moments apart finely enough for this quota: 2^62 ns (146
    /// years) less the time of a burst, or with [`Memory::Compact`](crate::Memory::Compact) as many emission intervals
    /// as 39 bits can count.
    HorizonTooLong {
        /// The longest horizon that is possible with this quota.
        longest: Duration,
    },
    /// The time that the burst takes to come back is more than half of what a state can span; see
    /// [`HorizonTooLong`](Self::HorizonTooLong).
    BurstTooLong {
        /// The burst that was asked for, in units.
        burst: u64,
        /// The largest that fits with a horizon as long as itself.
        largest: u64,
    },
    /// [`Memory::Compact`](crate::Memory::Compact) has room for a bucket only.
    NotCompact {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
    },
    /// A quota can be changed for another of the same algorithm only, where token and leaky bucket are one; and a
    /// [sliding-window log](Algorithm::SlidingWindowLog) neither be changed nor share a table with other quotas.
    OtherAlgorithm {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
    },
    /// The states of a running limiter have no room for this quota; see [`Limiter::set_quota`](crate::Limiter::set_quota).
    OutOfReach {
        /// The quota that was asked for.
        quota: Quota,
    },
    /// There is no quota at this place.
    NoSuchQuota {
        /// The place that was asked for.
        index: usize,
        /// How many quotas there are.
        count: usize,
    },
    /// The capacity is zero.
    ZeroCapacity,
    /// The table would be larger than the address space allows, or the machine has not enough memory for it.
    OutOfMemory {
        /// The capacity that was asked for, in keys.
        capacity: usize,
    },
}

impl BuildError {
    pub(crate) fn limit_too_large(quota: &Quota, largest: u64) -> Self {
        Self::LimitTooLarge { algorithm: quota.algorithm(), limit: quota.limit(), largest }
    }
}

impl From<QuotaError> for BuildError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => write!(f, "impossible quota: {error}"),
            Self::LimitTooLarge { algorithm, limit, largest } => write!(
                f,
                "a limit of {limit} is too large for {algorithm} with this period and horizon; it can be at most {largest}, or use \
                 token-bucket"
            ),
            Self::HorizonTooLong { longest } => {
                write!(f, "the horizon is too long for this quota; it can be at most {longest:?}")
            }
            Self::BurstTooLong { burst, largest } => {
                write!(f, "a burst of {burst} is too large for this rate and this memory; it can be at most {largest}")
            }
            Self::NotCompact { algorithm } => {
                write!(
                    f,
                    "{algorithm} does not fit into compact memory; use token-bucket or leaky-bucket, or exact memory"
                )
            }
            Self::OtherAlgorithm { algorithm } => {
                write!(f, "{algorithm} cannot go on with states of another algorithm; build a limiter for it")
            }
            Self::OutOfReach { quota } => write!(
                f,
                "{quota} is too far from the quota for which the states of the keys were laid out; build a limiter for it"
            ),
            Self::NoSuchQuota { index, count } => {
                write!(f, "there is no quota {index}: the limiter has {count}, counted from 0")
            }
            Self::ZeroCapacity => f.write_str("the capacity is 0 keys; it must be at least 1"),
            Self::OutOfMemory { capacity } => {
                write!(
                    f,
                    "no memory for a table of {capacity} keys; each needs about 24 bytes, or 12 in compact memory, and 12 more \
                     for each unit of a sliding-window log"
                )
            }
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Quota(error) => Some(error),
            _ => None,
        }
    }
}

/// A cost that the quota can never give, however long one waits. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CostError {
    /// The cost that was asked for, in units.
    pub cost: u64,
    /// The most units that the quota can give at once.
    pub limit: u64,
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cost of {} can never be admitted: the quota gives at most {} at once", self.cost, self.limit)
    }
}

impl Error for CostError {}

/// Why a check by a quota of its own was not decided. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The cost is more than the quota can ever give.
    Cost(CostError),
    /// The quota is impossible, or does not fit the states of the limiter.
    Quota(BuildError),
    /// The limiter has no room for one more quota.
    TooManyQuotas {
        /// The quota that was asked for.
        quota: Quota,
    },
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(error) => error.fmt(f),
            Self::Quota(error) => error.fmt(f),
            Self::TooManyQuotas { quota } => write!(
                f,
                "no room for the quota {quota} besides those seen before; build the limiter with a larger number of other_quotas"
            ),
        }
    }
}

impl Error for CheckError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Cost(error) => Some(error),
            Self::Quota(error) => Some(error),
            Self::TooManyQuotas { .. } => None,
        }
    }
}

impl From<CostError> for CheckError {
    fn from(error: CostError) -> Self {
        Self::Cost(error)
    }
}

impl From<BuildError> for CheckError {
    fn from(error: BuildError) -> Self {
        Self::Quota(error)
    }
}

/// Why nobody waits for this. Nothing was taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is more than the quota can ever give.
    Cost(CostError),
    /// The key is blocked, or the table has no room for it. No place is booked for something like that to be over.
    Refused(crate::Decision),
    /// It would take longer than the caller wants to wait, or than can be kept.
    TooLong {
        /// How long it would take; [`Duration::MAX`] if that cannot even be kept.
        wait: Duration,
    },
    /// As many as may are waiting already; see `Builder::waiting`.
    TooManyWaiting {
        /// How long it would take.
        wait: Duration,
    },
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(error) => error.fmt(f),
            Self::Refused(decision) if decision.is_blocked() => {
                write!(f, "the key is blocked for {:?} more", decision.retry_after())
            }
            Self::Refused(decision) => {
                write!(f, "the table has no room for the key; ask again after {:?}", decision.retry_after())
            }
            Self::TooLong { wait } => write!(f, "a wait of {wait:?} is longer than allowed"),
            Self::TooManyWaiting { wait } => {
                write!(
                    f,
                    "as many as may are waiting already, until {wait:?} from now; raise Builder::waiting or refuse"
                )
            }
        }
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Cost(error) => Some(error),
            _ => None,
        }
    }
}

impl From<CostError> for WaitError {
    fn from(error: CostError) -> Self {
        Self::Cost(error)
    }
}
