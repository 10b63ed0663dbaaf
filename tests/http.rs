//! Limits on HTTP requests, by single requests and real servers.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "http/addresses.rs"]
mod addresses;
#[path = "http/answers.rs"]
mod answers;
#[path = "http/fields.rs"]
mod fields;
#[path = "http/keys.rs"]
mod keys;
#[path = "http/policies.rs"]
mod policies;
#[path = "http/server.rs"]
mod server;
#[path = "http/support.rs"]
mod support;
#[path = "http/watching.rs"]
mod watching;
