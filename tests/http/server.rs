//! A real server on loopback and a real client.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath};
use axum::routing::get;
use reqwest::{Client, Response};
use tollgate::http::{ClientAddr, Key, KeyBy, Policy, RateLimitLayer};
use tollgate::{ClientIp, Limiter, ManualClock, Quota};

/// Serves a router, and tells where.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    format!("http://{address}")
}

fn peer() -> ClientAddr {
    ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip())
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

#[tokio::test]
async fn every_field_on_both_outcomes() {
    let limiter = Limiter::<ClientIp>::builder(Quota::per_hour(2)).build().unwrap();
    let router = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter, peer()));
    let (url, client) = (serve(router).await, Client::new());
    for remaining in ["1", "0"] {
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some(remaining));
        assert!(header(&response, "x-ratelimit-reset").unwrap().parse::<u64>().unwrap() <= 3_600);
        assert_eq!(header(&response, "ratelimit-policy"), Some("\"default\";q=2;w=3600"));
        assert!(header(&response, "ratelimit").unwrap().starts_with(&format!("\"default\";r={remaining};t=")));
        assert_eq!(header(&response, "retry-after"), None);
        assert_eq!(response.text().await.unwrap(), "hello");
    }
    for method in [reqwest::Method::GET, reqwest::Method::HEAD, reqwest::Method::POST] {
        let response = client.request(method.clone(), &url).send().await.unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some("0"));
        assert_eq!(header(&response, "ratelimit-policy"), Some("\"default\";q=2;w=3600"));
        assert!(header(&response, "ratelimit").unwrap().starts_with("\"default\";r=0;t="));
        let retry_after: u64 = header(&response, "retry-after").unwrap().parse().unwrap();
        assert!((1..=1_800).contains(&retry_after), "{retry_after}");
        assert_eq!(header(&response, "cache-control"), Some("no-store"));
        assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
        let body = response.text().await.unwrap();
        assert_eq!(body.is_empty(), method == reqwest::Method::HEAD, "{body}");
    }
}

#[tokio::test]
async fn each_route_of_a_router_by_its_pattern() {
    let limiter = Limiter::<Key>::builder(Quota::per_hour(2)).build().unwrap();
    let key = KeyBy::client(peer()).and(KeyBy::extension(|path: &MatchedPath| path.as_str().to_owned()));
    let router = Router::new()
        .route("/users/{id}", get(|| async {}))
        .route("/items/{id}", get(|| async {}))
        .route_layer(RateLimitLayer::builder().policy(Policy::new(limiter, key)).build());
    let (url, client) = (serve(router).await, Client::new());
    let status = async |path: &str| client.get(format!("{url}{path}")).send().await.unwrap().status().as_u16();
    assert_eq!([status("/users/1").await, status("/users/2").await, status("/users/3").await], [200, 200, 429]);
    assert_eq!([status("/items/1").await, status("/missing").await], [200, 404]);
}

/// Whoever obeys `Retry-After` to the second is never refused twice, whatever the quota.
#[tokio::test]
async fn who_obeys_is_admitted() {
    for quota in
        ["3/1700ms burst=1", "7/10s", "5/2500ms algorithm=fixed-window", "9/7s algorithm=sliding-window-counter"]
    {
        let clock = ManualClock::at(1_234_567_890_123_456_789);
        let builder = Limiter::<ClientIp>::builder(quota.parse().unwrap()).clock(clock.clone());
        let layer = RateLimitLayer::new(builder.build().unwrap(), peer());
        let (url, client) = (serve(Router::new().route("/", get(|| async {})).layer(layer)).await, Client::new());
        let (mut obeyed, mut is_obeying) = (0, false);
        while obeyed < 30 {
            let response = client.get(&url).send().await.unwrap();
            assert!(!is_obeying || response.status() == 200, "{quota}: refused after it has waited");
            is_obeying = response.status() == 429;
            clock.advance(Duration::from_nanos(7_654_321));
            if is_obeying {
                obeyed += 1;
                clock.advance(Duration::from_secs(header(&response, "retry-after").unwrap().parse().unwrap()));
            }
        }
    }
}
