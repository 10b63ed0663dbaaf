//! Limits on HTTP requests, as a layer for anything built on [tower](https://docs.rs/tower): axum, hyper, tonic.
//!
//! A [`RateLimitLayer`] asks a limiter about each request by a key that it finds in it, answers what is over a limit with
//! 429, and tells clients in headers how they stand.
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use axum::extract::ConnectInfo;
//! use axum::{Router, routing::get};
//! use tollgate::http::{ClientAddr, RateLimitLayer};
//! use tollgate::{ClientIp, Limiter, Quota};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::<ClientIp>::builder(Quota::per_minute(100).with_burst(20)).capacity(1_000_000).build()?;
//! // Behind a proxy: .behind(["10.0.0.0/8".parse()?])
//! let client = ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip());
//!
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::new(limiter, client))
//!     .into_make_service_with_connect_info::<SocketAddr>();
//! axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`ClientAddr`] finds the client's address, behind proxies too. [`KeyBy`] makes keys of headers, cookies, extensions,
//!   methods, paths, and of several of them. Any function of the request's head will do as well.
//! * [`Policy`] says for which requests a limit is, what they cost (by their answers too), and whether it is on trial.
//! * [`HeaderFields`] chooses what clients are told, [`Answer`] how refusals are put.
//! * [`RateLimitBuilder::on_refusal`] calls back. Refusals are events of `tracing` too (target `tollgate::http`, level info, ten a
//!   second at most, keys hashed). With the feature `metrics`, `tollgate_decisions_total` counts by `policy` and `decision`
//!   (`allowed`, `refused`, `would_refuse`).
//!
//! With the feature `redis`, a `SharedRateLimitLayer` also asks limits that many servers share.
//!
//! A request whose client goes away before there is an answer has cost what it was charged. The
//! [delay](crate::Decision::delay) of a leaky bucket is not waited for: the layer admits or refuses.

mod address;
mod body;
mod desk;
mod fields;
mod forwarded;
mod gate;
mod key;
mod layer;
mod policy;
mod refusal;
mod ruling;
#[cfg(feature = "redis")]
mod shared;
#[cfg(feature = "redis")]
mod shared_layer;
mod watch;

pub use address::{ClientAddr, ClientHeader};
pub use body::Body;
pub use fields::{Draft, HeaderFields, Reset};
pub use gate::Gate;
pub use key::{Extract, Key, KeyBy};
pub use layer::{RateLimit, RateLimitBuilder, RateLimitLayer, ResponseFuture};
pub use policy::{InProcess, Policy};
pub use refusal::{Answer, Refusal};
#[cfg(feature = "redis")]
pub use {
    policy::Shared,
    shared::AsyncGate,
    shared_layer::{SharedRateLimit, SharedRateLimitLayer},
};
