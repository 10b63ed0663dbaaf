//! What operators see.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tollgate::http::{Policy, RateLimitLayer};

use crate::support::{admitted, limiter, peer, request, request_from};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[tokio::test]
async fn refusals_are_called_back() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (limiter, _) = limiter("1/min");
    let (trial, _) = self::limiter("2/min");
    let log = Arc::clone(&seen);
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(limiter, peer()).named(["strict"]).methods([http::Method::POST]))
        .policy(Policy::new(trial, peer()).named(["trial"]).dry_run())
        .on_refusal(move |refusal, request| {
            let refusal = (refusal.policy().to_owned(), refusal.is_dry_run(), refusal.key(), refusal.is_never());
            log.lock().unwrap().push((refusal, request.method.clone()));
        })
        .build();
    let post = || {
        let mut request = request();
        *request.method_mut() = http::Method::POST;
        request
    };
    assert_eq!(admitted(&layer, 2, post).await, 1);
    assert_eq!(admitted(&layer, 2, request).await, 2);
    assert_eq!(admitted(&layer, 3, || request_from("192.0.2.9:1", &[])).await, 3);
    let seen = seen.lock().unwrap();
    let told: Vec<_> =
        seen.iter().map(|((policy, dry, _, never), method)| (policy.as_str(), *dry, *never, method.as_str())).collect();
    assert_eq!(told, [("strict", false, false, "POST"), ("trial", true, false, "GET"), ("trial", true, false, "GET")]);
    assert_eq!(seen[0].0.2, seen[1].0.2, "a key is called the same by all policies that have it");
    assert_ne!(seen[1].0.2, seen[2].0.2);
}

/// What is written by a subscriber.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn refusals_are_events_but_not_too_many() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
    let (limiter, _) = limiter("1/min");
    let layer = RateLimitLayer::builder().policy(Policy::new(limiter, peer()).named(["strict"])).build();
    tracing::subscriber::with_default(subscriber, || {
        assert_eq!(runtime().block_on(admitted(&layer, 10_000, request)), 1);
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let first = log.lines().next().unwrap();
    assert!(first.contains("tollgate::http") && first.contains("refused policy=\"strict\" key="), "{first}");
    assert!(first.contains("method=\"GET\"") && first.contains("dry_run=false unlogged=0"), "{first}");
    assert!(!log.contains("192.0.2.1"), "no address is logged");
    // Ten at once and ten a second, however fast it was.
    assert!((10..1_000).contains(&log.lines().count()), "{}", log.lines().count());
}

#[cfg(feature = "metrics")]
#[test]
fn decisions_are_counted() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let (limiter, _) = limiter("2/min");
    let (trial, _) = self::limiter("1/min");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(limiter, peer()).named(["strict"]))
        .policy(Policy::new(trial, peer()).named(["trial"]).dry_run())
        .build();
    metrics::with_local_recorder(&recorder, || runtime().block_on(admitted(&layer, 5, request)));
    let mut counts: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
            let DebugValue::Counter(count) = value else { panic!("{value:?}") };
            (key.key().name().to_owned(), labels.join(" "), count)
        })
        .collect();
    counts.sort();
    let counts: Vec<_> = counts.iter().map(|(name, labels, count)| (name.as_str(), labels.as_str(), *count)).collect();
    let name = "tollgate_decisions_total";
    assert_eq!(
        counts,
        [
            (name, "strict allowed", 2),
            (name, "strict refused", 3),
            (name, "strict would_refuse", 0),
            (name, "trial allowed", 1),
            (name, "trial refused", 0),
            (name, "trial would_refuse", 1),
        ]
    );
}
