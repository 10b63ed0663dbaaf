//! Which requests a limit is for, what they cost, and that several limits are decided as one.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use tollgate::http::{ClientAddr, KeyBy, Policy, RateLimitBuilder, RateLimitLayer};
use tollgate::{AccessList, GlobalLimiter, IpLimiter, IpPrefix, Limiter, ManualClock, Quota};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{
    Clients, PEER, admitted, answer, answer_by, hello, layer, limiter, ns, peer, quota, request, request_from,
};

fn with_path(method: Method, path: &str) -> Request<Body> {
    let mut request = request_from(PEER, &[]);
    (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
    request
}

fn get(path: &str) -> Request<Body> {
    with_path(Method::GET, path)
}

fn one(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder().policy(policy).build()
}

/// Case I08: the limit is that of the layer, not of each service, clone or connection.
#[tokio::test]
async fn clones_share_their_limits() {
    let (layer, _) = layer("5/s");
    let service = layer.layer(service_fn(hello));
    let services: Vec<_> =
        (0..25).map(|_| service.clone()).chain((0..25).map(|_| layer.clone().layer(service_fn(hello)))).collect();
    let mut ok = 0;
    for service in services {
        ok += usize::from(answer_by(service, request()).await.is_ok());
    }
    assert_eq!(ok, 5);
}

#[tokio::test]
async fn clients_are_told_apart() {
    let (layer, _) = layer("2/s");
    assert_eq!(admitted(&layer, 5, request).await, 2);
    assert_eq!(admitted(&layer, 5, || request_from("192.0.2.2:1", &[])).await, 2);
    assert_eq!(admitted(&layer, 5, || request_from("192.0.2.1:999", &[])).await, 0, "another port is the same client");
}

#[tokio::test]
async fn every_limiter_is_a_gate() {
    let clock = ManualClock::at(1);
    let everybody = GlobalLimiter::with_clock(quota("3/s"), clock.clone()).unwrap();
    let layer = RateLimitLayer::new(everybody, |_: &http::request::Parts| ());
    assert_eq!(admitted(&layer, 5, request).await, 3);

    let networks =
        IpLimiter::builder(quota("2/s")).and(IpPrefix::new(24, 48), quota("3/s")).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::new(Arc::new(networks), peer());
    assert_eq!(admitted(&layer, 3, request).await, 2);
    assert_eq!(admitted(&layer, 3, || request_from("192.0.2.2:1", &[])).await, 1, "the rest of the /24");
    let refused = answer(&layer, request()).await;
    assert!(refused.header("ratelimit-policy").unwrap().starts_with("\"2/s\";q=2;w=1, \"3/s\";q=3"));

    // A limiter of borrowed keys, and one that somebody else uses too.
    let by_name = Limiter::<str>::builder(quota("2/s")).clock(clock).build();
    let by_name: Arc<Limiter<str, ManualClock>> = by_name.unwrap().into();
    let shared = Arc::clone(&by_name);
    let key = |request: &http::request::Parts| request.uri.path().to_owned();
    let owned = Limiter::<String>::builder(quota("2/s")).build().unwrap();
    assert_eq!(admitted(&RateLimitLayer::new(owned, key), 3, request).await, 2);
    assert!(shared.check("/").is_allowed());
}

#[tokio::test]
async fn routes_have_limits_of_their_own() {
    let (all, _) = limiter("10/s");
    let (search, _) = limiter("2/s");
    let (writes, _) = limiter("1/s");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(all, peer()))
        .policy(Policy::new(search, peer()).named(["search"]).under("/search/"))
        .policy(
            Policy::new(writes, peer())
                .named(["writes"])
                .methods([Method::POST, Method::PUT])
                .when(|request| request.uri.path() != "/free"),
        )
        .build();
    assert_eq!(admitted(&layer, 3, || get("/search")).await, 2);
    assert_eq!(admitted(&layer, 1, || get("/search/images?q=1")).await, 0);
    assert_eq!(admitted(&layer, 1, || get("/searching")).await, 1);
    assert_eq!(admitted(&layer, 2, || with_path(Method::POST, "/x")).await, 1);
    assert_eq!(admitted(&layer, 2, || with_path(Method::PUT, "/free")).await, 2);
    // Two for search, one each for searching and POST, two for free: four are left, and refusals took none.
    assert_eq!(admitted(&layer, 9, || get("/")).await, 4);
    let refused = answer(&layer, get("/search")).await;
    assert!(refused.body.contains(r#""violated-policies":["default","search"]"#), "{}", refused.body);
}

/// Case J01 on HTTP: what one limit refuses is not charged to the others, in either order.
#[tokio::test]
async fn all_limits_are_charged_or_none() {
    for turned in [false, true] {
        let (a, _) = limiter("2/60s");
        let (b, clock) = limiter("1/s");
        let policies = [Policy::new(a.clone(), peer()), Policy::new(b, peer())];
        let mut policies: Vec<_> = policies.into_iter().collect();
        if turned {
            policies.reverse();
        }
        let layer = policies.into_iter().fold(RateLimitLayer::builder(), RateLimitBuilder::policy).build();
        assert!(answer(&layer, request()).await.is_ok());
        assert_eq!(admitted(&layer, 100, request).await, 0);
        let client = "192.0.2.1".parse::<IpAddr>().unwrap().into();
        assert_eq!(a.peek(&client).remaining(), 1);
        clock.advance(std::time::Duration::from_secs(1));
        assert!(answer(&layer, request()).await.is_ok());
        assert_eq!(a.peek(&client).remaining(), 0);
    }
}

#[test]
fn charges_from_many_threads_are_those_of_the_requests_admitted() {
    let (a, _) = limiter("100000/d");
    let (b, _) = limiter("1000/d");
    let layer = RateLimitLayer::builder().policy(Policy::new(a.clone(), peer())).policy(Policy::new(b, peer())).build();
    let ok = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let admitted = runtime.block_on(admitted(&layer, 200, request));
                ok.fetch_add(admitted as u64, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(ok.load(Ordering::Relaxed), 1_000);
    let client = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    assert_eq!(a.peek(&client).remaining(), 100_000 - 1_000);
}

#[tokio::test]
async fn requests_cost_what_they_are_said_to() {
    let cost = |request: &http::request::Parts| request.uri.path()[1..].parse().unwrap_or(1);
    let (limiter, _) = limiter("10/s");
    let layer = one(Policy::new(limiter, peer()).cost(cost));
    assert_eq!(answer(&layer, get("/7")).await.number("x-ratelimit-remaining"), 3);
    let refused = answer(&layer, get("/4")).await;
    assert_eq!(
        (refused.status, refused.number("x-ratelimit-remaining"), refused.number("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, 3, 1)
    );
    assert_eq!(answer(&layer, get("/0")).await.number("x-ratelimit-remaining"), 3);
    assert!(answer(&layer, get("/3")).await.is_ok());
    assert!(answer(&layer, get("/0")).await.is_ok(), "what costs nothing is admitted");

    // No wait helps a request that costs more than there can ever be.
    let never = answer(&layer, get("/11")).await;
    assert_eq!((never.status, never.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
    assert!(never.body.contains("more than its quota can ever give"), "{}", never.body);
}

#[tokio::test]
async fn limits_of_one_request_may_cost_differently() {
    let cost = |request: &http::request::Parts| request.uri.path()[1..].parse().unwrap_or(1);
    let (requests, _) = limiter("10/s");
    let (bytes, _) = limiter("100/s");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(requests.clone(), peer()).named(["requests"]))
        .policy(Policy::new(bytes.clone(), peer()).named(["bytes"]).cost(cost))
        .build();
    let client = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    let left =
        |requests: &Clients, bytes: &Clients| (requests.peek(&client).remaining(), bytes.peek(&client).remaining());
    assert!(answer(&layer, get("/60")).await.is_ok());
    assert_eq!(left(&requests, &bytes), (9, 40));
    let refused = answer(&layer, get("/41")).await;
    assert!(refused.body.contains(r#"["bytes"]"#), "{}", refused.body);
    assert!(answer(&layer, get("/0")).await.is_ok());
    assert_eq!(left(&requests, &bytes), (8, 40));
    let never = answer(&layer, get("/101")).await;
    assert_eq!((never.status, never.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
    assert_eq!(left(&requests, &bytes), (8, 40));
}

#[tokio::test]
async fn answers_settle_what_requests_cost() {
    let (limiter, _) = limiter("10/s");
    let settle = |answer: &http::response::Parts, cost| match answer.status.as_u16() {
        304 | 500.. => 0,
        201 => 4,
        _ => cost,
    };
    let layer = one(Policy::new(limiter, peer()).settle(settle));
    let service = layer.layer(service_fn(|request: Request<Body>| async move {
        let status = StatusCode::from_bytes(&request.uri().path().as_bytes()[1..]).unwrap();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        Ok::<_, std::convert::Infallible>(response)
    }));
    for (path, remaining) in [("/200", 9), ("/503", 9), ("/304", 9), ("/404", 8), ("/201", 4), ("/201", 0), ("/500", 0)]
    {
        let answer = answer_by(service.clone(), get(path)).await;
        if path == "/500" {
            assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        } else {
            assert_eq!(answer.number("x-ratelimit-remaining"), remaining, "{path}");
        }
    }
}

#[tokio::test]
async fn bytes_are_counted_as_they_are_sent() {
    let (limiter, clock) = limiter("10/s");
    let layer = one(Policy::new(limiter.clone(), peer()).count_bytes(1_000));
    let client = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    let service = |length: usize| {
        layer.layer(service_fn(move |_: Request<Body>| async move {
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(vec![b'x'; length])))
        }))
    };
    assert_eq!(answer_by(service(2_001), request()).await.body.len(), 2_001);
    assert_eq!(limiter.peek(&client).remaining(), 6, "one for the request, three for the bytes");
    answer_by(service(0), request()).await;
    assert_eq!(limiter.peek(&client).remaining(), 5);
    // What is not waited for is paid for as far as it was sent, and more than there is is a debt.
    drop(service(5_000).oneshot(request()).await.unwrap());
    assert_eq!(limiter.peek(&client).remaining(), 4);
    answer_by(service(20_000), request()).await;
    assert_eq!(answer(&layer, request()).await.number("retry-after"), 2);
    clock.advance(ns(1_800_000_000));
    assert!(answer(&layer, request()).await.is_ok());
}

#[tokio::test]
async fn a_dry_run_refuses_nothing() {
    let (limiter, _) = limiter("1/min");
    let layer = one(Policy::new(limiter.clone(), peer()).dry_run());
    assert_eq!(admitted(&layer, 5, request).await, 5);
    let told = answer(&layer, request()).await;
    assert_eq!((told.number("x-ratelimit-remaining"), told.header("retry-after")), (0, None));
    assert_eq!(told.header("ratelimit"), Some("\"default\";r=0;t=60"));
    assert_eq!(limiter.stats().refused, 5);

    // Beside one that is in force, it sees what that lets pass, and has no say in it.
    let (enforced, _) = self::limiter("3/min");
    let (trial, _) = self::limiter("1/min");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(trial.clone(), peer()).named(["trial"]).dry_run().hidden())
        .policy(Policy::new(enforced, peer()))
        .build();
    assert_eq!(admitted(&layer, 5, request).await, 3);
    let stats = trial.stats();
    assert_eq!((stats.allowed, stats.refused), (1, 2));
    let refused = answer(&layer, request()).await;
    assert_eq!(refused.header("ratelimit-policy"), Some("\"default\";q=3;w=60"), "a hidden one is not told");
}

#[tokio::test]
async fn what_a_dry_run_did_not_take_is_not_given_back() {
    let (trial, _) = limiter("2/min");
    let (enforced, _) = limiter("9/min");
    let free = |policy: Policy| policy.settle(|_, _| 0).count_bytes(1);
    let client = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    let alone = one(free(Policy::new(trial.clone(), peer()).dry_run()));
    let beside = RateLimitLayer::builder()
        .policy(free(Policy::new(trial.clone(), peer()).dry_run()))
        .policy(free(Policy::new(enforced.clone(), peer())))
        .build();
    trial.charge(&client, 2);
    for layer in [alone, beside] {
        let answer = answer(&layer, request()).await;
        assert!(answer.is_ok() && !answer.body.is_empty());
        assert_eq!(trial.peek(&client).remaining(), 0);
        assert_eq!(trial.peek(&client).retry_after(), std::time::Duration::from_secs(30), "neither a unit nor a byte");
    }
    assert!(enforced.peek(&client).remaining() < 9, "which took it");
}

#[tokio::test]
async fn hidden_policies_tell_only_when_to_come_back() {
    let (hidden, _) = limiter("1/min");
    let (open, _) = limiter("9/min");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(hidden, peer()).named(["secret"]).hidden())
        .policy(Policy::new(open, peer()))
        .build();
    assert!(answer(&layer, request()).await.is_ok());
    let refused = answer(&layer, request()).await;
    assert_eq!((refused.number("retry-after"), refused.number("x-ratelimit-limit")), (60, 9));
    assert_eq!(refused.header("ratelimit"), Some("\"default\";r=8;t=7"));
}

#[tokio::test]
async fn some_are_exempt() {
    let (limiter, _) = limiter("1/min");
    let list = AccessList::new().allow("198.51.100.0/24".parse().unwrap()).deny("203.0.113.0/24".parse().unwrap());
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(limiter, peer()))
        .exempt(|request| request.uri.path() == "/healthz")
        .exempt_options()
        .access(list, peer())
        .build();
    assert_eq!(admitted(&layer, 5, || get("/healthz")).await, 5);
    assert_eq!(admitted(&layer, 5, || with_path(Method::OPTIONS, "/")).await, 5);
    assert_eq!(admitted(&layer, 5, || request_from("198.51.100.7:1", &[])).await, 5);
    let exempt = answer(&layer, request_from("198.51.100.7:1", &[])).await;
    assert_eq!(exempt.header("x-ratelimit-limit"), None);
    let denied = answer(&layer, request_from("203.0.113.7:1", &[])).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::FORBIDDEN, None));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(admitted(&layer, 5, request).await, 1);
}

#[tokio::test]
async fn keys_of_any_kind() {
    let limiter =
        Limiter::<tollgate::http::Key>::builder(Quota::per_minute(2)).clock(ManualClock::at(7)).build().unwrap();
    let key = KeyBy::header("x-api-key".parse().unwrap()).or(KeyBy::client(peer())).and(KeyBy::path());
    let layer = RateLimitLayer::new(limiter, key);
    let with_key = |key: &'static str| move || request_from(PEER, &[("x-api-key", key)]);
    assert_eq!(admitted(&layer, 3, with_key("a")).await, 2);
    assert_eq!(admitted(&layer, 3, with_key("b")).await, 2);
    assert_eq!(admitted(&layer, 3, request).await, 2);
    assert_eq!(admitted(&layer, 3, || get("/other")).await, 2);
}

/// A layer whose clients are not known by anything is still a limit.
#[tokio::test]
async fn clients_without_an_address_share_one() {
    let (limiter, _) = limiter("2/min");
    let layer = RateLimitLayer::new(limiter, ClientAddr::peer(|peer: &String| peer.parse::<IpAddr>().ok()));
    assert_eq!(admitted(&layer, 5, request).await, 2);
}
