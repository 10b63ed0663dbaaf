//! The middleware that waits for shared limits: [`SharedRateLimitLayer`], [`SharedRateLimit`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::body::Body;
use super::desk::{Desk, Outcome};

/// Puts [`SharedRateLimit`] around services: as [`RateLimitLayer`](super::RateLimitLayer), with limits that many servers share.
///
/// Those are asked first, one after the other. If another limit refuses after that, what they took is given back; so a
/// request is charged to all or to none, but others may be refused for what is about to be given back.
///
/// ```no_run
/// use std::net::SocketAddr;
///
/// use axum::extract::ConnectInfo;
/// use axum::{Router, routing::get};
/// use tollgate::http::{ClientAddr, Policy, RateLimitLayer};
/// use tollgate::redis::RedisLimiter;
/// use tollgate::{ClientIp, Quota};
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let shared = RedisLimiter::builder(Quota::per_minute(100)).build("redis://10.0.0.7/")?;
/// let client = ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip());
/// let layer = RateLimitLayer::builder().build_shared([Policy::shared::<ClientIp, _, _>(shared, client)]);
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedRateLimitLayer {
    pub(super) desk: Arc<Desk>,
}

impl<S> Layer<S> for SharedRateLimitLayer {
    type Service = SharedRateLimit<S>;

    fn layer(&self, inner: S) -> SharedRateLimit<S> {
        SharedRateLimit { inner, desk: Arc::clone(&self.desk) }
    }
}

impl fmt::Debug for SharedRateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRateLimitLayer").field("desk", &self.desk).finish()
    }
}

/// A service behind rate limits that are shared, see [`SharedRateLimitLayer`].
#[derive(Clone)]
pub struct SharedRateLimit<S> {
    inner: S,
    desk: Arc<Desk>,
}

impl<S, A, B> Service<Request<A>> for SharedRateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
{
    type Response = Response<Body<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // That which is ready goes along; its clone may not be.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let desk = Arc::clone(&self.desk);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            match desk.decide_shared(&head).await {
                Outcome::Pass(stamp) => {
                    let (mut head, body) = inner.call(Request::from_parts(head, body)).await?.into_parts();
                    let meter = desk.stamp(stamp, &mut head);
                    Ok(Response::from_parts(head, Body::inner(body, meter)))
                }
                Outcome::Answer(answer) => Ok(answer.map(Body::refusal)),
            }
        })
    }
}

impl<S: fmt::Debug> fmt::Debug for SharedRateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRateLimit").field("inner", &self.inner).field("desk", &self.desk).finish()
    }
}
