//! A request that is admitted costs no allocation but those of the fields that its answer carries.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tollgate::http::{ClientAddr, HeaderFields, Key, KeyBy, Policy, RateLimitBuilder, RateLimitLayer};
use tollgate::{AccessList, ClientIp, GlobalLimiter, Limiter, Quota};
use tower::{Layer, Service, service_fn};

/// The system's allocator, counting.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's; counting allocates nothing, as the counter is a constant-initialized `Cell`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn hello(_request: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    ready(Ok(Response::new(())))
}

/// The allocations of a request to a layer that has been asked before.
fn allocations(layer: &RateLimitLayer) -> usize {
    let mut service = layer.layer(service_fn(hello));
    let mut ask = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 1)));
        request.headers_mut().insert("x-forwarded-for", "6.6.6.6, 7.7.7.7, 192.0.2.9".parse().unwrap());
        request.headers_mut().insert("cookie", "a=1; session=abc".parse().unwrap());
        let before = COUNT.with(Cell::get);
        let mut future = pin!(service.call(request));
        let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
        let after = COUNT.with(Cell::get);
        assert_eq!(response.status(), 200);
        after - before
    };
    ask();
    ask()
}

fn peer() -> ClientAddr {
    ClientAddr::peer(|peer: &SocketAddr| peer.ip())
}

fn clients(quotas: &[Quota]) -> Policy {
    let builder = Limiter::<ClientIp>::builder(quotas[0]).capacity(100);
    let builder = quotas[1..].iter().fold(builder, |builder, quota| builder.and(*quota));
    Policy::new(builder.build().unwrap(), peer().behind(["192.0.2.0/24".parse().unwrap()]))
}

fn keys() -> Policy {
    let key = KeyBy::header("x-api-key".parse().unwrap())
        .or(KeyBy::cookie("session"))
        .and(KeyBy::client(peer()))
        .and(KeyBy::path());
    Policy::new(Limiter::<Key>::builder(Quota::per_second(1_000)).capacity(100).build().unwrap(), key)
}

fn everybody() -> Policy {
    Policy::new(GlobalLimiter::new(Quota::per_second(1_000)).unwrap(), |_: &http::request::Parts| ())
}

#[test]
fn nothing_is_allocated_but_fields() {
    let bare = || RateLimitLayer::builder().headers(HeaderFields::none());
    let list = AccessList::new().deny("203.0.113.0/24".parse().unwrap());
    let two = [Quota::per_second(1_000), Quota::per_day(1_000_000)];
    for (name, layer) in [
        ("no policy", bare()),
        ("one", bare().policy(clients(&two[..1]))),
        ("two quotas", bare().policy(clients(&two))),
        ("keys of several parts", bare().policy(keys())),
        ("several policies", bare().policy(clients(&two)).policy(keys()).policy(everybody())),
        ("on trial", bare().policy(clients(&two).dry_run()).policy(everybody())),
        ("a list", bare().policy(everybody()).access(list, peer())),
    ] {
        assert_eq!(allocations(&layer.build()), 0, "{name}");
    }
    // Each field is an allocation; the others are those of the list of them, of the map, and of the text of `RateLimit`.
    let told = |layer: RateLimitBuilder| allocations(&layer.headers(HeaderFields::default()).build());
    assert!(told(bare().policy(clients(&two[..1]))) <= 10);
    assert!(told(bare().policy(clients(&two)).policy(keys()).policy(everybody())) <= 12);
}
