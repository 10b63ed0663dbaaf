//! The same limit for many servers, kept in [Redis](https://redis.io) 7 or Valkey (feature `redis`).
//!
//! A [`RedisLimiter`] has the quotas and gives the decisions of a [`Limiter`](crate::Limiter), but what clients have used is
//! kept where all servers see it. A check is one trip, in which a script decides all quotas of a client at once, by the time
//! of the Redis server; so servers whose clocks are wrong agree.
//!
//! ```no_run
//! use tollgate::Quota;
//! use tollgate::redis::RedisLimiter;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let quota = Quota::per_minute(100).with_burst(20);
//! let limiter = RedisLimiter::builder(quota).and(Quota::per_day(5_000)).build("redis://10.0.0.7/")?;
//!
//! if limiter.check("alice").await.is_allowed() {
//!     println!("welcome");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # When Redis is slow or gone
//!
//! No check waits longer than its [deadline](RedisBuilder::deadline) of 5 ms. The first that fails opens a circuit breaker:
//! those that follow are decided at once by [`WhenDown`], while a task asks Redis every 100 ms whether it is back. A limiter can
//! be built while Redis is down.
//!
//! A script is sent again only if the server has refused to look at it: it does not know the script, or another node has the
//! key. So no request is counted twice. One whose answer got lost, or came late, may have been counted while it was
//! decided without Redis.
//!
//! # Saving trips
//!
//! Who is refused is [remembered](RedisBuilder::remember) here until there is something to give, so a client that goes on
//! asking costs Redis one trip for each unit that it gets back. With a [`Lease`] a server takes slices of the budgets and spends them
//! here.
//!
//! # What is kept in Redis
//!
//! A string for each client and quota (a sorted set for a sliding-window log), called `prefix:{client}:quota`, so that all
//! those of a client lie on the same node of a cluster. Each expires when nothing is owed any more. One that does not (someone
//! has set it by other means) is given a time to live by the next check, and a bare number counts as units used.
//!
//! Times are whole microseconds below 2^53, which the numbers of the script keep exactly, and buckets count in ticks below
//! that, in which nothing is rounded; so decisions are those of the exact algorithm. Periods of windows have to be whole
//! microseconds, limits at most 2^52, and that of a sliding-window log at most 100,000, as it keeps a member for each unit.
//! Fixed windows begin at multiples of their period since the Unix epoch.

mod builder;
mod fallback;
mod keys;
mod link;
mod memory;
mod purse;
mod script;
mod stats;
mod terms;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use ahash::RandomState;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::clock::Clock;
use crate::decision::{Decision, Numbers, Verdict};
use crate::error::CostError;
use crate::quota::Quota;

pub use builder::{RedisBuildError, RedisBuilder};
pub use fallback::WhenDown;
pub use link::RedisState;
pub use purse::Lease;
pub use stats::RedisStats;

use fallback::Fallback;
use keys::Tag;
use link::Link;
use memory::Memory;
use purse::{Asking, Purse};
use script::{Deed, Reply};
use stats::count;

/// So often a check waits for a slice that another asks for, before it asks by itself.
const MOST_WAITS: usize = 3;

/// Quotas of many clients that many servers share. See the [module](self).
///
/// Clones share everything, the connection too. It lives in the runtime of tokio (with time and I/O enabled) in which it is
/// first asked, and moves on to another if that ends; outside of any, [`WhenDown`] decides.
#[derive(Clone)]
pub struct RedisLimiter {
    inner: Arc<Inner>,
}

struct Inner {
    quotas: Box<[Quota]>,
    link: Arc<Link>,
    fallback: Fallback,
    memory: Option<Memory>,
    purse: Option<Purse>,
    clock: Arc<dyn Clock>,
    /// Whether the clock tells Redis the time.
    is_by_clock: bool,
    hasher: RandomState,
}

/// Who made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Redis.
    Redis,
    /// This process, which remembers that Redis refused the client a moment ago.
    Remembered,
    /// This process, out of a [slice](Lease) that it took from Redis before. What remains is told of the slice.
    Leased,
    /// [`WhenDown`], as Redis did not.
    WhenDown,
    /// A limiter in this process, which asks nobody.
    Here,
}

/// What a [`RedisLimiter`] answers.
#[derive(Clone, Debug)]
#[must_use = "a decision limits nothing unless it is looked at"]
pub struct SharedDecision {
    decision: Decision,
    each: Vec<Decision>,
    source: Source,
}

impl SharedDecision {
    /// With what is known of each quota.
    pub(crate) fn new(decision: Decision, each: Vec<Decision>, source: Source) -> Self {
        let each = each.into_iter().map(|part| part.admitted_by(&decision)).collect();
        Self { decision, each, source }
    }

    /// Whether the request may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// The decision: that of the quota which refused, with the longest wait if several did, or which has least left. Its times
    /// are exact to the microsecond.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// How each quota stands, as far as that is known: all of them, unless it was [remembered](Source::Remembered) or
    /// [leased](Source::Leased). [`Decision::quota_index`] says which is which.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// Who made it.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }
}

impl RedisLimiter {
    /// Begins a limiter that gives each client `quota`.
    pub fn builder(quota: Quota) -> RedisBuilder {
        RedisBuilder::new(quota)
    }

    /// Takes one unit from the budget of `client`, if it is there.
    ///
    /// A client is whatever its text says: `"7"` and `7` are the same. A text may be of any length and have any characters,
    /// but it is kept in Redis as it is.
    pub async fn check(&self, client: impl fmt::Display) -> SharedDecision {
        self.inner.check(&Tag::new(&client), 1).await
    }

    /// Takes `cost` units from the budget of `client`, all or none. A cost of 0 takes nothing.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if the cost is more than a quota can ever give at once. Nothing is taken then.
    pub async fn check_n(&self, client: impl fmt::Display, cost: u64) -> Result<SharedDecision, CostError> {
        let limit = self.limit();
        if cost > limit {
            return Err(CostError { cost, limit });
        }
        let tag = Tag::new(&client);
        Ok(if cost == 0 { self.inner.look(&tag, 0).await } else { self.inner.check(&tag, cost).await })
    }

    /// What a check of `client` would say now, without taking anything. What servers have leased counts as used.
    pub async fn peek(&self, client: impl fmt::Display) -> SharedDecision {
        self.inner.look(&Tag::new(&client), 1).await
    }

    /// Charges `units` to `client` whether they are there or not, as a debt if need be: at most 2^52 of them, or some 142
    /// years, and in a sliding-window log eight times the limit. False if Redis did not say that it has.
    pub async fn charge(&self, client: impl fmt::Display, units: u64) -> bool {
        let tag = Tag::new(&client);
        self.inner.fallback.charge(&tag, units);
        units == 0 || self.inner.does(&tag, Deed::Charge, units).await
    }

    /// Gives `units` back to `client`, never above full; windows and logs as [`Limiter::refund`](crate::Limiter::refund). False if
    /// Redis did not say that it has.
    pub async fn refund(&self, client: impl fmt::Display, units: u64) -> bool {
        let tag = Tag::new(&client);
        self.inner.fallback.refund(&tag, units);
        units == 0 || self.inner.pardons(&tag, Deed::Refund, units).await
    }

    /// Forgets all that `client` has used. Other servers that remember a refusal notice it when that is over. False if Redis did
    /// not say that it has.
    pub async fn reset(&self, client: impl fmt::Display) -> bool {
        let tag = Tag::new(&client);
        self.inner.fallback.reset(&tag);
        self.inner.pardons(&tag, Deed::Forget, 1).await
    }

    /// Completes when Redis is there: to warm up before the first request, whose check has no time to connect. Waits for ever
    /// if it never is.
    pub async fn ready(&self) {
        self.inner.link.ready().await;
    }

    /// How things stand between this and Redis; in a cluster, where they stand worst.
    #[must_use]
    pub fn state(&self) -> RedisState {
        self.inner.link.state()
    }

    /// What has happened so far.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        self.inner.link.counters.stats()
    }

    /// The quotas, in the order of [`Decision::quota_index`].
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.inner.quotas
    }

    /// What the keys of `client` in Redis are called, one for each quota: for those who want to look.
    #[must_use]
    pub fn keys_of(&self, client: impl fmt::Display) -> Vec<String> {
        self.inner.link.keys().of(&Tag::new(&client)).collect()
    }

    /// The most units that all quotas give at once.
    fn limit(&self) -> u64 {
        self.inner.link.terms().iter().map(terms::Terms::limit).min().unwrap_or(0)
    }
}

impl Inner {
    async fn check(&self, tag: &Tag, cost: u64) -> SharedDecision {
        let answer = self.decide(tag, cost).await;
        let counters = &self.link.counters;
        count(if answer.is_allowed() { &counters.allowed } else { &counters.refused });
        answer
    }

    async fn decide(&self, tag: &Tag, cost: u64) -> SharedDecision {
        let (id, deadline) = (self.hasher.hash_one(tag.as_str()), self.link.deadline());
        for _ in 0..MOST_WAITS {
            let sent = self.clock.now();
            // The slice first: who asked alone may have been refused while it was on its way.
            if let Some(answer) = self.spend(id, cost, sent) {
                return answer;
            }
            if let Some(answer) = self.recall(id, cost, sent) {
                return answer;
            }
            let Some(purse) = &self.purse else { break };
            // From here on it hears the bell.
            let mut answered = pin!(purse.bell(id).notified());
            answered.as_mut().enable();
            if let Some(asking) = purse.ask(id, sent) {
                return self.take(tag, id, cost, Some(asking), deadline).await;
            }
            // There is nowhere to wait outside of tokio.
            if Handle::try_current().is_err() || timeout_at(deadline, answered).await.is_err() {
                return self.alone(tag, cost, true);
            }
        }
        self.take(tag, id, cost, None, deadline).await
    }

    /// The refusal that is remembered.
    fn recall(&self, id: u64, cost: u64, now: u64) -> Option<SharedDecision> {
        let refusal = self.memory.as_ref()?.recall(id, cost, now, self.link.terms())?;
        count(&self.link.counters.remembered);
        Some(SharedDecision::new(refusal, vec![refusal], Source::Remembered))
    }

    /// Admitted out of the slice that is there.
    fn spend(&self, id: u64, cost: u64, now: u64) -> Option<SharedDecision> {
        let decision = self.leased(self.purse.as_ref()?.spend(id, cost, now)?, cost);
        count(&self.link.counters.leased);
        Some(SharedDecision::new(decision, vec![decision], Source::Leased))
    }

    /// Asks Redis, for a slice too if that is ours to ask for.
    async fn take(
        &self,
        tag: &Tag,
        id: u64,
        cost: u64,
        asking: Option<Asking<'_>>,
        deadline: Instant,
    ) -> SharedDecision {
        let sent = self.clock.now();
        let entry = self.memory.as_ref().map_or(0, |memory| memory.entry(id, cost));
        let costs = asking.as_ref().map_or_else(|| vec![cost], |asking| asking.costs(cost));
        let Some(reply) = self.run(tag, Deed::Take, &costs, deadline).await else {
            return self.alone(tag, cost, true);
        };
        count(&self.link.counters.shared);
        let taken = reply.admitted.and_then(|place| costs.get(place)).copied();
        let verdict = if taken.is_some() { Verdict::Allowed } else { Verdict::Refused };
        let mut answer = self.shared(&reply, cost, verdict);
        let mut wait = answer.decision.retry_after();
        if let Some(asking) = asking {
            match taken {
                Some(units) if units > cost || costs.len() == 1 => {
                    asking.fill(units, units - cost, self.window_end(&reply));
                    return answer;
                }
                // There was enough for the request and no more, or not even that.
                _ => wait = wait.max(asking.pause()),
            }
            if taken.is_none() {
                answer.decision = answer.decision.no_sooner(wait);
            }
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| !wait.is_zero()) {
            // Unless it got something back meanwhile.
            if memory.entry(id, cost) == entry {
                memory.note(entry, sent, wait, answer.decision.quota_index());
            }
        }
        answer
    }

    async fn look(&self, tag: &Tag, cost: u64) -> SharedDecision {
        let deadline = self.link.deadline();
        let Some(reply) = self.run(tag, Deed::Peek, &[cost], deadline).await else {
            return self.alone(tag, cost, false);
        };
        count(&self.link.counters.shared);
        let verdict = if reply.admitted.is_some() { Verdict::Allowable } else { Verdict::Refused };
        self.shared(&reply, cost, verdict)
    }

    /// `None` if Redis has not answered.
    async fn run(&self, tag: &Tag, deed: Deed, costs: &[u64], deadline: Instant) -> Option<Reply> {
        let now = self.is_by_clock.then(|| self.clock.now() / 1_000);
        self.link.run(tag, deed, now, costs, deadline).await.ok()
    }

    /// False if Redis has not answered.
    async fn does(&self, tag: &Tag, deed: Deed, units: u64) -> bool {
        self.run(tag, deed, &[units], self.link.deadline()).await.is_some()
    }

    /// What the script's answer means. A quota that has room when another has not takes nothing, but refuses nothing either.
    fn shared(&self, reply: &Reply, cost: u64, verdict: Verdict) -> SharedDecision {
        let of_quota = |(index, (terms, told)): (usize, (&terms::Terms, &terms::Told))| {
            let verdict = match verdict {
                Verdict::Refused if terms.admits(told, cost) => Verdict::Allowable,
                verdict => verdict,
            };
            terms.decision(told, cost, verdict).of_quota(index)
        };
        let each: Vec<Decision> = self.link.terms().iter().zip(&reply.told).enumerate().map(of_quota).collect();
        let decision = each.iter().copied().reduce(Decision::tighter).unwrap_or_default();
        SharedDecision::new(decision, each, Source::Redis)
    }

    fn alone(&self, tag: &Tag, cost: u64, takes: bool) -> SharedDecision {
        count(&self.link.counters.alone);
        let (decision, each) = self.fallback.decide(tag, cost, takes, self.link.terms());
        SharedDecision::new(decision, each, Source::WhenDown)
    }

    /// What has been taken before, of which so much is left.
    fn leased(&self, left: u64, cost: u64) -> Decision {
        let limit = self.link.terms().iter().map(terms::Terms::limit).min().unwrap_or(0);
        let numbers = Numbers { remaining: left.min(limit), ..Numbers::full(limit) };
        Decision::of_numbers(numbers, 0, 0, cost, Verdict::Allowed)
    }

    /// The nanoseconds until the first of the fixed windows ends.
    fn window_end(&self, reply: &Reply) -> u64 {
        let ends = self.link.terms().iter().zip(&reply.told).filter(|(terms, _)| terms.is_fixed());
        ends.map(|(_, told)| told[1].saturating_mul(1_000)).min().unwrap_or(u64::MAX)
    }

    /// The same of what gives something back. Refusals from before are forgotten before that, lest it be given up, and after
    /// it, as a check may have been refused between the two.
    async fn pardons(&self, tag: &Tag, deed: Deed, units: u64) -> bool {
        self.forget(tag);
        let is_done = self.does(tag, deed, units).await;
        self.forget(tag);
        is_done
    }

    /// Forgets refusals of a client, which has got something back.
    fn forget(&self, tag: &Tag) {
        if let Some(memory) = &self.memory {
            memory.forget(self.hasher.hash_one(tag.as_str()), self.clock.now());
        }
    }
}

impl fmt::Debug for RedisLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter")
            .field("quotas", &self.quotas())
            .field("link", &self.inner.link)
            .finish_non_exhaustive()
    }
}
