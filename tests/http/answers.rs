//! What is answered instead of the service, and that the service is otherwise left alone.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollgate::http::{Answer, Policy, RateLimitLayer};
use tower::{Layer, Service, ServiceBuilder, service_fn};

use crate::support::{answer, hello, layer, limiter, peer, request, request_from};

fn with_answer(quota: &str, answer: Answer) -> RateLimitLayer {
    let (limiter, _) = limiter(quota);
    RateLimitLayer::builder().policy(Policy::new(limiter, peer())).answer(answer).build()
}

#[tokio::test]
async fn a_refusal_is_a_problem() {
    let (layer, _) = layer("1/min");
    assert_eq!(answer(&layer, request()).await.body, "hello");
    let refused = answer(&layer, request()).await;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (StatusCode::TOO_MANY_REQUESTS, Some("application/problem+json"))
    );
    assert_eq!(refused.number("content-length"), refused.body.len() as u64);
    assert_eq!(
        serde_json::from_str::<Value>(&refused.body).unwrap(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "Too many requests. Try again in 60 seconds.",
            "violated-policies": ["default"],
        })
    );
}

#[tokio::test]
async fn a_block_is_abnormal_usage() {
    let (limiter, _) = limiter("5/min");
    let layer = RateLimitLayer::new(limiter.clone(), peer());
    limiter.block(&"192.0.2.1".parse::<IpAddr>().unwrap().into(), Duration::from_millis(599_500));
    let blocked = answer(&layer, request()).await;
    assert_eq!((blocked.number("retry-after"), blocked.number("x-ratelimit-remaining")), (600, 0));
    assert_eq!(blocked.header("ratelimit"), Some("\"default\";r=0;t=600"));
    assert!(blocked.body.contains("#abnormal-usage-detected"), "{}", blocked.body);

    // Also beside another policy.
    let (other, _) = self::limiter("9/min");
    let layer = RateLimitLayer::builder()
        .policy(Policy::new(other, peer()).named(["other"]))
        .policy(Policy::new(limiter, peer()))
        .build();
    let blocked = answer(&layer, request()).await;
    assert_eq!((blocked.status, blocked.number("retry-after")), (StatusCode::TOO_MANY_REQUESTS, 600));
    assert!(blocked.body.contains(r#""violated-policies":["default"]"#), "{}", blocked.body);
}

#[tokio::test]
async fn a_refusal_is_put_as_one_likes() {
    let layer = with_answer("1/s", Answer::Text);
    assert!(answer(&layer, request()).await.is_ok());
    let refused = answer(&layer, request()).await;
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(refused.body, "Too many requests. Try again in 1 second.\n");

    let own = Answer::custom(|refusal, request| {
        let text =
            format!("{} {:?} {} {:?}", request.method, refusal.violated(), refusal.policy(), refusal.retry_after());
        let response =
            Response::builder().status(503).header("cache-control", "private").header("x-ratelimit-limit", "none");
        response.body(Bytes::from(text)).unwrap()
    });
    let layer = with_answer("1/s", own);
    assert!(answer(&layer, request()).await.is_ok());
    let refused = answer(&layer, request()).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.body, "GET [\"default\"] default Some(1s)");
    assert_eq!((refused.number("retry-after"), refused.header("cache-control")), (1, Some("private")));
    assert_eq!((refused.header("x-ratelimit-limit"), refused.header("x-ratelimit-remaining")), (Some("none"), None));
    assert_eq!(refused.header("ratelimit"), Some("\"default\";r=0;t=1"));
}

#[tokio::test]
async fn who_asks_for_the_head_gets_the_head() {
    let (layer, _) = layer("1/min");
    let head = || {
        let mut request = request();
        *request.method_mut() = Method::HEAD;
        request
    };
    assert!(answer(&layer, head()).await.is_ok());
    let refused = answer(&layer, head()).await;
    assert_eq!((refused.status, refused.body.as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert!(refused.number("content-length") > 0);
    assert_eq!(refused.number("retry-after"), 60);
}

/// A service that is ready when it is told to be, and fails in its own way.
#[derive(Clone)]
struct Moody {
    is_ready: bool,
}

#[derive(Debug, PartialEq)]
struct Mood(&'static str);

impl Service<Request<Body>> for Moody {
    type Response = Response<Body>;
    type Error = Mood;
    type Future = Ready<Result<Response<Body>, Mood>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Mood>> {
        if self.is_ready { Poll::Ready(Err(Mood("tired"))) } else { Poll::Pending }
    }

    fn call(&mut self, _request: Request<Body>) -> Self::Future {
        ready(Err(Mood("angry")))
    }
}

#[tokio::test]
async fn readiness_and_errors_are_those_of_the_service() {
    let (layer, _) = layer("1/min");
    let mut service = layer.layer(Moody { is_ready: false });
    poll_fn(|context| {
        assert!(service.poll_ready(context).is_pending());
        Poll::Ready(())
    })
    .await;
    let mut service = layer.layer(Moody { is_ready: true });
    assert_eq!(poll_fn(|context| service.poll_ready(context)).await, Err(Mood("tired")));
    assert_eq!(service.call(request()).await.unwrap_err(), Mood("angry"));
    assert_eq!(service.call(request()).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS, "which was charged");
}

/// Refusals do not hold on to what a service has given out to be ready: here the one permit that there is.
#[tokio::test]
async fn refusals_hold_no_permits() {
    let (layer, _) = layer("1/min");
    let stack = ServiceBuilder::new().layer(layer).concurrency_limit(1).service(service_fn(hello));
    for refused in [false, true, true, true] {
        let (is_refused, request) = (refused, request());
        let response = tower::ServiceExt::oneshot(stack.clone(), request).await.unwrap();
        assert_eq!(response.status() == StatusCode::TOO_MANY_REQUESTS, is_refused);
    }
    let other = tower::ServiceExt::oneshot(stack, request_from("192.0.2.2:1", &[])).await.unwrap();
    assert_eq!(other.status(), StatusCode::OK);
}

/// Any body goes in, and any body of bytes comes out.
#[tokio::test]
async fn bodies_are_left_alone() {
    let (layer, _) = layer("9/min");
    let echo = service_fn(|request: Request<String>| async {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(Bytes::from(request.into_body()))))
    });
    let (head, _) = request().into_parts();
    let response =
        tower::ServiceExt::oneshot(layer.layer(echo), Request::from_parts(head, "echo".to_owned())).await.unwrap();
    let body = response.into_body();
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(4));
    assert!(!http_body::Body::is_end_stream(&body));
    assert_eq!(http_body_util::BodyExt::collect(body).await.unwrap().to_bytes(), "echo");
}
