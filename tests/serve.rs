//! `tollgate serve` as a process: under load, behind a proxy, in a browser. Needs `wrk`, `nginx` and `chromium`, which
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
