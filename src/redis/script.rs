//! The script: how it is asked, and how its answers are read.

use redis::{Cmd, FromRedisValue, RedisError, Value};

use super::terms::{Terms, Told};

const CODE: &str = include_str!("script.lua");

/// For how long keys are kept at least where the time is not the server's own, in milliseconds: they expire by that.
const LEAST_BY_OTHER_CLOCK: u64 = 60_000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Take,
    Peek,
    Charge,
    Refund,
    /// Forgets what was used.
    Forget,
    /// Writes a key that is gone a second later.
    Probe,
}

/// One call of the script.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) deed: Deed,
    /// In microseconds; the server's own time if there is none.
    pub(super) now: Option<u64>,
    /// Of which the first that is admitted is taken.
    pub(super) costs: &'a [u64],
    pub(super) keys: &'a [String],
    pub(super) terms: &'a [Terms],
}

/// What it answers.
#[derive(Debug)]
pub(super) struct Reply {
    /// Which of the costs is admitted, by its place.
    pub(super) admitted: Option<usize>,
    pub(super) told: Vec<Told>,
}

#[derive(Debug)]
pub(super) struct Script(redis::Script);

impl Script {
    pub(super) fn new() -> Self {
        Self(redis::Script::new(CODE))
    }

    /// The command that runs it by its hash, or by its text, from which the server learns it.
    pub(super) fn command(&self, call: &Call<'_>, by_text: bool) -> Cmd {
        let deed = match call.deed {
            Deed::Take => "take",
            Deed::Peek => "peek",
            Deed::Charge => "charge",
            Deed::Refund => "refund",
            Deed::Forget => "forget",
            Deed::Probe => "probe",
        };
        let mut command = redis::cmd(if by_text { "EVAL" } else { "EVALSHA" });
        command.arg(if by_text { CODE } else { self.0.get_hash() });
        command.arg(call.keys.len()).arg(call.keys).arg(deed);
        match call.now {
            Some(now) => command.arg(now).arg(LEAST_BY_OTHER_CLOCK),
            None => command.arg("").arg(1),
        };
        command.arg(call.costs.len()).arg(call.costs);
        for terms in call.terms {
            terms.write(call.costs, &mut command);
        }
        command
    }
}

impl Reply {
    pub(super) fn read(value: Value, quotas: usize) -> Result<Self, RedisError> {
        let numbers = Vec::<u64>::from_redis_value(value)?;
        let told: Vec<Told> = numbers.get(1..).unwrap_or_default().as_chunks().0.to_vec();
        match numbers.first() {
            Some(&admitted) if told.len() == quotas => {
                Ok(Self { admitted: usize::try_from(admitted).unwrap_or(0).checked_sub(1), told })
            }
            _ => Err((redis::ErrorKind::UnexpectedReturnType, "the script answered with something else").into()),
        }
    }
}
