//! One limit for many servers, against Redis servers of our own, which are killed, stopped, flushed and cut off on purpose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "redis/cluster.rs"]
mod cluster;
#[path = "redis/decisions.rs"]
mod decisions;
#[path = "redis/faults.rs"]
mod faults;
#[path = "redis/fleet.rs"]
mod fleet;
#[cfg(feature = "tower")]
#[path = "redis/layer.rs"]
mod layer;
#[path = "redis/process.rs"]
mod process;
#[path = "redis/proxy.rs"]
mod proxy;
#[path = "support/vectors.rs"]
mod vectors;
#[path = "redis/vectors.rs"]
mod vectors_in_redis;
