//! `tollgate serve` as a process: under load, behind a proxy, in a browser. Needs `wrk`, `nginx`, `chromium` and `redis-server`, which
//! `tests/all.sh` installs.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "serve/browser.rs"]
mod browser;
#[path = "serve/load.rs"]
mod load;
#[path = "serve/options.rs"]
mod options;
#[path = "serve/process.rs"]
mod process;
#[path = "serve/proxy.rs"]
mod proxy;
#[path = "redis/process.rs"]
#[allow(dead_code, clippy::expect_used)]
mod redis_process;
#[path = "serve/shared.rs"]
mod shared;
