//! The middleware: [`RateLimitLayer`], [`RateLimit`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::address::ClientAddr;
use super::body::Body;
use super::desk::{Desk, Outcome, Stamp};
use super::fields::HeaderFields;
use super::gate::Gate;
use super::key::Extract;
use super::policy::Policy;
use super::refusal::{Answer, Refusal};
use crate::access::AccessList;

/// Puts [`RateLimit`] around services: what is over a limit is answered with 429 and does not reach the service.
///
/// All services that it makes, and all their clones, share its limiters. Clones are cheap. See the
/// [module](crate::http) for an example.
#[derive(Clone)]
pub struct RateLimitLayer {
    desk: Arc<Desk>,
}

impl RateLimitLayer {
    /// Limits all requests by `gate`, by the key that `extract` finds: [`Policy::new`], and no more.
    #[must_use]
    pub fn new<K, G, E>(gate: G, extract: E) -> Self
    where
        K: std::hash::Hash + Clone + Send + 'static,
        G: Gate<K>,
        E: Extract<K>,
    {
        Self::builder().policy(Policy::new(gate, extract)).build()
    }

    /// Begins a layer, which lets everything pass until it has a policy.
    pub fn builder() -> RateLimitBuilder {
        RateLimitBuilder { desk: Desk::default() }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, desk: Arc::clone(&self.desk) }
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("desk", &self.desk).finish()
    }
}

/// Puts a [`RateLimitLayer`] together.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RateLimitBuilder {
    desk: Desk,
}

impl RateLimitBuilder {
    /// Limits by this, too. A request is admitted by all policies that are for it, or charged to none; those on
    /// [trial](Policy::dry_run) have no say.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.desk.add(policy.erased());
        self
    }

    /// Which fields answers carry.
    pub fn headers(mut self, fields: HeaderFields) -> Self {
        self.desk.fields = fields;
        self
    }

    /// How refusals are put; [`Answer::Problem`] unless set.
    pub fn answer(mut self, answer: Answer) -> Self {
        self.desk.answer = answer;
        self
    }

    /// Lets requests of which this is true pass without asking: health checks, say. Take care that nobody can make up what it
    /// looks at.
    pub fn exempt(mut self, matches: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.desk.exempt.push(Box::new(matches));
        self
    }

    /// Lets requests of the method OPTIONS pass without asking, with which browsers ask before they send the request proper.
    pub fn exempt_options(self) -> Self {
        self.exempt(|request| request.method == Method::OPTIONS)
    }

    /// Asks `list` before any policy: who is let in passes, who is shut out is answered with 403.
    pub fn access(mut self, list: AccessList, client: ClientAddr) -> Self {
        self.desk.access = Some((list, client));
        self
    }

    /// Calls this for each request that is refused, or would have been in a dry run. It is called by the thread of the
    /// request, which waits for it.
    pub fn on_refusal(mut self, on_refusal: impl Fn(&Refusal<'_>, &Parts) + Send + Sync + 'static) -> Self {
        self.desk.watch.on_refusal = Some(Arc::new(on_refusal));
        self
    }

    /// The layer.
    #[must_use]
    pub fn build(self) -> RateLimitLayer {
        RateLimitLayer { desk: Arc::new(self.desk) }
    }

    /// A layer that limits by these as well, which it may have to ask elsewhere.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn build_shared(
        mut self,
        policies: impl IntoIterator<Item = Policy<super::Shared>>,
    ) -> super::SharedRateLimitLayer {
        for policy in policies {
            self.desk.add(policy.erased());
        }
        super::SharedRateLimitLayer { desk: Arc::new(self.desk) }
    }
}

/// A service behind rate limits, see [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    desk: Arc<Desk>,
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<Body<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    /// Ready when the service is: what is refused is no reason to take in more than it can bear.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> ResponseFuture<S::Future> {
        let (head, body) = request.into_parts();
        let kind = match self.desk.decide(&head) {
            Outcome::Pass(stamp) => {
                Kind::Passed { answer: self.inner.call(Request::from_parts(head, body)), stamp: Some(stamp) }
            }
            Outcome::Answer(answer) => Kind::Answered { answer: Some(answer) },
        };
        ResponseFuture { kind, desk: Arc::clone(&self.desk) }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("desk", &self.desk).finish()
    }
}

pin_project! {
    /// The answer of [`RateLimit`], to come.
    pub struct ResponseFuture<F> {
        #[pin]
        kind: Kind<F>,
        desk: Arc<Desk>,
    }
}

pin_project! {
    #[project = KindOf]
    enum Kind<F> {
        Passed {
            #[pin]
            answer: F,
            stamp: Option<Stamp>,
        },
        Answered {
            answer: Option<Response<Bytes>>,
        },
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Body<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.kind.project() {
            KindOf::Passed { answer, stamp } => {
                let (mut head, body) = ready!(answer.poll(context))?.into_parts();
                let meter = this.desk.stamp(stamp.take().unwrap_or_default(), &mut head);
                Poll::Ready(Ok(Response::from_parts(head, Body::inner(body, meter))))
            }
            KindOf::Answered { answer } => Poll::Ready(Ok(answer.take().unwrap_or_default().map(Body::refusal))),
        }
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
