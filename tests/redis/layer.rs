//! The layer that asks shared limits: two servers that know nothing of each other but Redis.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use tollgate::http::{Policy, RateLimitLayer, SharedRateLimitLayer};
use tollgate::redis::{RedisLimiter, WhenDown};
use tollgate::{Limiter, Quota};
use tower::{Layer, ServiceExt, service_fn};

use crate::process::Redis;

fn shared(redis: &Redis, quota: Quota) -> RedisLimiter {
    RedisLimiter::builder(quota).deadline(Duration::from_secs(60)).build(&redis.url()).unwrap()
}

/// Keys are paths.
fn path(request: &http::request::Parts) -> String {
    request.uri.path().to_owned()
}

/// The status, and what the fields say.
async fn ask(layer: &SharedRateLimitLayer, path: &str) -> (u16, String) {
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let request = Request::builder().uri(path).body(()).unwrap();
    let answer = layer.layer(service).oneshot(request).await.unwrap();
    let text = |name| answer.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    (answer.status().as_u16(), text("ratelimit"))
}

#[tokio::test]
async fn servers_share_a_limit() {
    let redis = Redis::start();
    let quota = Quota::with_period(3, Duration::from_secs(365 * 86_400));
    let server = || {
        let policy = Policy::shared::<String, _, _>(shared(&redis, quota), path).named(["api"]);
        RateLimitLayer::builder().build_shared([policy])
    };
    let servers = [server(), server()];
    for (place, left) in [2, 1, 0].into_iter().enumerate() {
        let (status, fields) = ask(&servers[place % 2], "/a").await;
        assert_eq!(status, 200);
        assert!(fields.starts_with(&format!("\"api\";r={left}")), "{fields}");
    }
    for server in &servers {
        for _ in 0..3 {
            let (status, fields) = ask(server, "/a").await;
            assert_eq!(status, 429);
            assert!(fields.starts_with("\"api\";r=0"), "{fields}");
        }
    }
    assert_eq!(ask(&servers[0], "/b").await.0, 200);
}

/// A request is charged to all limits, or to none, wherever they are.
#[tokio::test]
async fn what_another_limit_refuses_is_given_back() {
    let redis = Redis::start();
    let year = Duration::from_secs(365 * 86_400);
    let (wide, narrow) = (shared(&redis, Quota::with_period(9, year)), shared(&redis, Quota::with_period(4, 2 * year)));
    let here = Limiter::<String>::builder(Quota::with_period(2, year)).build().unwrap();
    let layer = RateLimitLayer::builder().policy(Policy::new(here, path).under("/here")).build_shared([
        Policy::shared::<String, _, _>(wide.clone(), path),
        Policy::shared::<String, _, _>(narrow.clone(), path).cost(|request| u64::from(request.uri.path() != "/free")),
    ]);
    let left = async |limiter: &RedisLimiter, path: &str| limiter.peek(path).await.decision().remaining();
    for (path, admitted) in [("/here", 2), ("/there", 4)] {
        for number in 0..6 {
            assert_eq!(ask(&layer, path).await.0, if number < admitted { 200 } else { 429 }, "{path} {number}");
        }
        // What was taken is given back by tasks of their own.
        for _ in 0..1_000 {
            if left(&wide, path).await == 9 - admitted && left(&narrow, path).await == 4 - admitted {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!((left(&wide, path).await, left(&narrow, path).await), (9 - admitted, 4 - admitted), "{path}");
    }
}

#[tokio::test]
async fn a_trial_refuses_nothing_and_what_can_never_be_given_is_refused() {
    let redis = Redis::start();
    let limiter = shared(&redis, Quota::with_period(2, Duration::from_secs(365 * 86_400)));
    let trial = Policy::shared::<String, _, _>(limiter.clone(), path).dry_run();
    let layer = RateLimitLayer::builder().build_shared([trial]);
    for _ in 0..4 {
        assert_eq!(ask(&layer, "/a").await.0, 200);
    }
    assert_eq!(limiter.peek("/a").await.decision().remaining(), 0);
    let policy = Policy::shared::<String, _, _>(limiter, path).cost(|_| 3);
    let layer = RateLimitLayer::builder().build_shared([policy]);
    assert_eq!(ask(&layer, "/b").await.0, 429);
}

/// The last unit that a limit in this process gives is admitted, whatever stands beside it.
#[tokio::test]
async fn the_last_unit_is_given() {
    let mut redis = Redis::start();
    redis.kill();
    let days = |days: u32| Quota::with_period(2, days * Duration::from_secs(86_400));
    let down = RedisLimiter::builder(days(1)).when_down(WhenDown::Local { servers: 1 }).build(&redis.url()).unwrap();
    let two = Limiter::<String>::builder(days(1)).and(days(2)).build().unwrap();
    let beside = || {
        let here = Limiter::<String>::builder(Quota::per_day(100)).build().unwrap();
        RateLimitLayer::builder().policy(Policy::new(here, path))
    };
    for layer in [
        beside().build_shared([Policy::shared::<String, _, _>(down, path)]),
        beside().build_shared([Policy::shared::<String, _, _>(two, path)]),
    ] {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(ask(&layer, "/a").await.0);
        }
        assert_eq!(statuses, [200, 200, 429, 429]);
    }
}
