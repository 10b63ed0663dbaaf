//! A rate limiter for servers that cannot wait: lock-free, keyed, in memory that is fixed at start.
//!
//! On every request a server asks a [`Limiter`] whether this client may go on. The [`Decision`] comes in nanoseconds,
//! for millions of anonymous clients, from any number of threads, with no lock, no allocation and no pause.
//!
//! ```
//! use std::net::IpAddr;
//! use tollgate::{Limiter, Quota};
//!
//! // 100 requests a minute for each client, at most 20 of them at once; room for a million clients in 24 MB.
//! let quota = Quota::per_minute(100).with_burst(20);
//! let limiter = Limiter::<IpAddr>::builder(quota).capacity(1_000_000).build()?;
//!
//! let client: IpAddr = "203.0.113.7".parse()?;
//! let decision = limiter.check(&client);
//! if decision.is_allowed() {
//!     println!("welcome, {} more", decision.remaining());
//! } else {
//!     println!("429, retry after {:?}", decision.retry_after());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Quota`] says how much in how much time, and by which [`Algorithm`]; it has a text form, `100/min burst=20`.
//! * [`Limiter`] gives each key a quota of its own, or several; [`GlobalLimiter`] one to all together; [`check_all`] decides
//!   limits of different keys as one.
//! * [`ClientIp`] makes clients of addresses, [`IpLimiter`] adds quotas for the networks around them.
//! * [`Limiter::check_many`] decides many keys together, several times as fast; [`Memory::Compact`] halves the memory of
//!   token buckets.
//! * [`Limiter::check_with`] gives keys quotas of their own, and [`Limiter::set_quota`] changes one while the limiter runs.
//! * [`Limiter::reserve`] books a place in time, [`Limiter::wait`] holds the thread until its turn, and `until_ready` (feature
//!   `tokio`) a task.
//! * [`Decision`] says what is left, and exactly when to come back.
//! * [`Clock`] is where the time comes from: [`PreciseClock`], [`CoarseClock`], [`ManualClock`], or your own.
//! * [`Sweeper`] frees the entries of keys that have come to rest, in the background; a limiter stays right, and inside
//!   its memory, without one.
//!
//! # How it works
//!
//! Each algorithm is a pure function on one 64-bit cell. A table of fixed size maps the 64-bit hash of a key to its
//! cell, and one compare-and-swap publishes a decision. An entry whose debt is paid is the same as no entry, so it can
//! be forgotten without losing anything: that is what keeps the memory bounded and the limits honest.
//!
//! # Features
//!
//! * `std` (default): limiters with keys, and all that needs an operating system. Without it the crate is `no_std` and
//!   needs `alloc` and 64-bit atomics. There are quotas, decisions, [`check_all`], [`ManualClock`], and [`GlobalLimiter`]
//!   on a clock that is given, without `leasing`.
//! * `tokio`: `Limiter::until_ready`, waiting as a future.
//! * `net`: `AccessList`, lists of networks that are let in or shut out before a limiter is asked.
//! * `tower`: `http`, limits on HTTP requests as a layer; `metrics`: counters of what they decide.
//! * `redis`: `redis::RedisLimiter`, the same limit for many servers; `redis-tls`: that through TLS.
//! * `cli`: the command `tollgate`.
#![warn(missing_docs)]
#![cfg_attr(not(feature = "std"), no_std)]
// Limiters with keys need more of the table than the core does.
#![cfg_attr(not(feature = "std"), allow(dead_code, unused_imports))]

extern crate alloc;

#[cfg(feature = "net")]
mod access;
#[cfg(feature = "std")]
mod background;
mod cell;
#[cfg(feature = "std")]
mod client;
mod clock;
mod decision;
mod error;
mod global;
#[cfg(feature = "tower")]
pub mod http;
#[cfg(feature = "std")]
mod ip_limiter;
mod ledger;
#[cfg(feature = "std")]
mod limiter;
mod published;
mod quota;
#[cfg(feature = "redis")]
pub mod redis;
mod sync;
mod table;
mod terms;
mod timeline;
mod together;

#[cfg(feature = "net")]
pub use access::{Access, AccessList};
pub use clock::{Clock, ManualClock};
pub use decision::Decision;
pub use error::{BuildError, CheckError, CostError, WaitError};
pub use global::GlobalLimiter;
pub use quota::{Algorithm, Quota, QuotaError};
pub use together::{Limit, check_all, peek_all, times};
#[cfg(feature = "std")]
pub use {
    client::{ClientIp, IpPrefix},
    clock::{CoarseClock, PreciseClock},
    ip_limiter::{IpLimiter, IpLimiterBuilder},
    ledger::{Memory, WhenFull},
    limiter::{Admitted, Builder, Limiter, Penalty, Request, Reservation, Sweeper},
    table::Stats,
};

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Builds the programs of the guide.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../docs/http.md")]
struct HttpGuide;
