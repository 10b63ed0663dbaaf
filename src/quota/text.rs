//! The text form of a quota: `LIMIT/PERIOD [burst=N] [algorithm=NAME]`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::{Algorithm, Quota, QuotaError};

/// Nanoseconds of each unit, the largest first; of two names for a unit the one to print comes first.
const UNITS: [(&str, u64); 8] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

fn problem(text: String) -> QuotaError {
    QuotaError::Text { problem: text }
}

/// The number `digits`, which says `what` in the text `whole`.
fn number(what: &str, digits: &str, whole: &str) -> Result<u64, QuotaError> {
    // `u64::from_str` would take a sign, which a count has not.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(problem(format!("the {what} {whole:?} is not a whole number")));
    }
    digits.parse().map_err(|_| problem(format!("the {what} {digits} is larger than {}", u64::MAX)))
}

fn period(text: &str) -> Result<Duration, QuotaError> {
    let (count, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let Some(&(_, unit_ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(problem(format!("the period {text:?} has no unit of ns, us, ms, s, sec, min, h or d")));
    };
    let count = if count.is_empty() { 1 } else { number("period", count, text)? };
    let nanos = u128::from(count) * u128::from(unit_ns);
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    // The remainder is below 10^9.
    Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

fn algorithm(name: &str) -> Result<Algorithm, QuotaError> {
    if name == "gcra" {
        return Ok(Algorithm::TokenBucket);
    }
    Algorithm::ALL.iter().copied().find(|known| known.name() == name).ok_or_else(|| {
        let known = Algorithm::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
        problem(format!("there is no algorithm {name:?}, only {known}"))
    })
}

/// Takes the value of an option that may be given once.
fn set_once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), QuotaError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(problem(format!("{name} is given twice"))),
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let mut words = text.split_ascii_whitespace();
        let Some(rate) = words.next() else {
            return Err(problem("the quota is empty".to_owned()));
        };
        let Some((limit_text, period_text)) = rate.split_once('/') else {
            return Err(problem(format!("{rate:?} has no '/' between limit and period")));
        };
        let (mut burst, mut chosen) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("burst", value)) => set_once(&mut burst, "burst", number("burst", value, value)?)?,
                Some(("algorithm", value)) => set_once(&mut chosen, "algorithm", algorithm(value)?)?,
                _ => return Err(problem(format!("{word:?} is neither burst=N nor algorithm=NAME"))),
            }
        }
        let algorithm = chosen.unwrap_or_default();
        if burst.is_some() && !algorithm.takes_burst() {
            return Err(QuotaError::NoBurst { algorithm });
        }
        let mut quota =
            Self::with_period(number("limit", limit_text, limit_text)?, period(period_text)?).with_algorithm(algorithm);
        quota.burst = burst.unwrap_or(quota.limit);
        quota.validate()?;
        Ok(quota)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.period.as_nanos();
        let divides = |unit: &&(&str, u64)| nanos != 0 && nanos.is_multiple_of(u128::from(unit.1));
        let &(unit, unit_ns) = UNITS.iter().find(divides).unwrap_or(&("s", 1_000_000_000));
        write!(f, "{}/", self.limit)?;
        match nanos / u128::from(unit_ns) {
            1 => f.write_str(unit)?,
            count => write!(f, "{count}{unit}")?,
        }
        if self.burst != self.limit {
            write!(f, " burst={}", self.burst)?;
        }
        if self.algorithm != Algorithm::default() {
            write!(f, " algorithm={}", self.algorithm)?;
        }
        Ok(())
    }
}
