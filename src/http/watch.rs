//! What operators see: a callback, events of `tracing`, counters of `metrics`.

use std::sync::Arc;

use http::request::Parts;

use super::refusal::Refusal;
use crate::clock::PreciseClock;
use crate::global::GlobalLimiter;
use crate::quota::Quota;
use crate::sync::{AtomicU64, Ordering};

type OnRefusal = dyn Fn(&Refusal<'_>, &Parts) + Send + Sync;

/// How many refusals are written to the log at most.
const LOGGED: Quota = Quota::per_second(10);

pub(super) struct Watch {
    pub(super) on_refusal: Option<Arc<OnRefusal>>,
    log: Option<GlobalLimiter<PreciseClock>>,
    unlogged: AtomicU64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { on_refusal: None, log: GlobalLimiter::new(LOGGED).ok(), unlogged: AtomicU64::new(0) }
    }
}

impl Watch {
    /// Tells of a refusal all who want to know.
    pub(super) fn refused(&self, refusal: &Refusal<'_>, request: &Parts) {
        if let Some(on_refusal) = &self.on_refusal {
            on_refusal(refusal, request);
        }
        if !tracing::enabled!(target: "tollgate::http", tracing::Level::INFO) {
            return;
        }
        if !self.log.as_ref().is_some_and(|log| log.check().is_allowed()) {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        tracing::info!(
            target: "tollgate::http",
            policy = refusal.policy(),
            key = format_args!("{:016x}", refusal.key()),
            method = request.method.as_str(),
            retry_after = ?refusal.decision().retry_after(),
            dry_run = refusal.is_dry_run(),
            unlogged = self.unlogged.swap(0, Ordering::Relaxed),
            "refused"
        );
    }
}

/// The counters of one policy.
#[cfg(feature = "metrics")]
#[derive(Default)]
pub(super) struct Counters(std::sync::OnceLock<[metrics::Counter; 3]>);

/// What became of a request.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Allowed,
    Refused,
    WouldRefuse,
}

#[cfg(feature = "metrics")]
impl Counters {
    /// Counts what a policy did. The counters are those of the recorder that is installed by the first request.
    pub(super) fn count(&self, policy: &str, count: Count) {
        let counters = self.0.get_or_init(|| {
            metrics::describe_counter!(DECISIONS, "Requests by what rate limits decided about them");
            ["allowed", "refused", "would_refuse"]
                .map(|decision| metrics::counter!(DECISIONS, "policy" => policy.to_owned(), "decision" => decision))
        });
        counters[count as usize].increment(1);
    }
}

/// The name of the counter.
#[cfg(feature = "metrics")]
const DECISIONS: &str = "tollgate_decisions_total";

/// Counts nothing.
#[cfg(not(feature = "metrics"))]
#[derive(Default)]
pub(super) struct Counters {}

#[cfg(not(feature = "metrics"))]
impl Counters {
    #[expect(clippy::unused_self, reason = "with the feature it has counters")]
    pub(super) fn count(&self, _policy: &str, _count: Count) {}
}
