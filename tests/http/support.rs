//! Requests, and a service that answers them.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::http::{ClientAddr, RateLimitLayer};
use tollgate::{ClientIp, Limiter, ManualClock, Quota};
use tower::{Layer, Service, ServiceExt, service_fn};

pub const PEER: &str = "192.0.2.1:4711";

/// A request from a peer, with headers.
pub fn request_from(peer: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().uri("/").body(Body::empty()).unwrap();
    request.extensions_mut().insert(peer.parse::<SocketAddr>().unwrap());
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

pub fn request() -> Request<Body> {
    request_from(PEER, &[])
}

/// The peer by its socket address.
pub fn peer() -> ClientAddr {
    ClientAddr::peer(|peer: &SocketAddr| peer.ip())
}

pub type Clients = Limiter<ClientIp, ManualClock>;

/// A limiter on a clock that stands still.
pub fn limiter(quota: &str) -> (std::sync::Arc<Clients>, ManualClock) {
    let clock = ManualClock::at(1_000_000_000_000_000_000);
    let limiter = Limiter::builder(quota.parse().unwrap()).clock(clock.clone()).capacity(1_000).build().unwrap();
    (limiter.into(), clock)
}

/// A layer that limits clients by one quota.
pub fn layer(quota: &str) -> (RateLimitLayer, ManualClock) {
    let (limiter, clock) = limiter(quota);
    (RateLimitLayer::new(limiter, peer()), clock)
}

pub fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

/// What a service said.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// A header that comes once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} comes twice");
        value.to_str().ok()
    }

    pub fn is_ok(&self) -> bool {
        self.status == StatusCode::OK
    }

    pub fn number(&self, name: &str) -> u64 {
        self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).parse().unwrap()
    }
}

/// A service that says hello.
pub fn hello(_request: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new("hello".into())))
}

/// What a service behind a layer answers to a request.
pub async fn answer_by<S, B>(service: S, request: Request<Body>) -> Answer
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    let Ok(response) = service.oneshot(request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status, headers: head.headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// What a service that says hello answers behind a layer.
pub async fn answer(layer: &RateLimitLayer, request: Request<Body>) -> Answer {
    answer_by(layer.layer(service_fn(hello)), request).await
}

/// How many of so many requests are admitted.
pub async fn admitted(layer: &RateLimitLayer, count: usize, request: impl Fn() -> Request<Body>) -> usize {
    let mut admitted = 0;
    for _ in 0..count {
        admitted += usize::from(answer(layer, request()).await.is_ok());
    }
    admitted
}

pub fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}
