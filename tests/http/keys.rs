//! Keys of parts of requests. Case I07: two that only look alike when put together.

use axum::body::Body;
use http::{Method, Request, header};
use tollgate::http::{Key, KeyBy};

use crate::support::{PEER, peer, request_from};

#[derive(Clone)]
struct User(u64);

fn key(by: &KeyBy, request: Request<Body>) -> Key {
    by.key(&request.into_parts().0)
}

fn with_path(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = request_from(PEER, headers);
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn header(name: &'static str) -> KeyBy {
    KeyBy::header(header::HeaderName::from_static(name))
}

#[test]
fn parts_do_not_run_together() {
    let by = header("a").and(header("b"));
    let of = |a: &str, b: &str| key(&by, request_from(PEER, &[("a", a), ("b", b)]));
    assert_eq!(of("1.2.3.4", "5/x"), of("1.2.3.4", "5/x"));
    assert_ne!(of("1.2.3.4", "5/x"), of("1.2.3.45", "/x"));
    assert_ne!(of("a", "b"), of("b", "a"));
    let by = header("a").and(KeyBy::path());
    let of = |a: &str, path: &str| key(&by, with_path(path, &[("a", a)]));
    assert_ne!(of("1.2.3.4", "/5/x"), of("1.2.3.4/5", "/x"));
    // Values of one header, and one header of all of them.
    let of = |values: &[(&str, &str)]| key(&header("a"), request_from(PEER, values));
    assert_ne!(of(&[("a", "xy")]), of(&[("a", "x"), ("a", "y")]));
    assert_ne!(of(&[("a", "x")]), of(&[("a", "x"), ("a", "")]));
}

#[test]
fn kinds_are_told_apart() {
    let request = || {
        let mut request = with_path("/x", &[("a", "/x"), ("cookie", "a=/x")]);
        request.extensions_mut().insert(User(7));
        request
    };
    let kinds = [
        header("a"),
        KeyBy::cookie("a"),
        KeyBy::path(),
        KeyBy::method(),
        KeyBy::extension(|user: &User| user.0),
        KeyBy::part(|request| Some(request.uri.path().to_owned())),
        KeyBy::client(peer()),
        header("missing"),
    ];
    for (index, kind) in kinds.iter().enumerate() {
        assert_eq!(key(kind, request()), key(kind, request()));
        for other in &kinds[..index] {
            assert_ne!(key(kind, request()), key(other, request()));
        }
    }
}

#[test]
fn what_is_missing_falls_back() {
    let by = KeyBy::extension(|user: &User| user.0).or(header("x-api-key")).or(KeyBy::client(peer()));
    let user = |id| {
        let mut request = request_from(PEER, &[("x-api-key", "k")]);
        request.extensions_mut().insert(User(id));
        key(&by, request)
    };
    let with_key = |value| key(&by, request_from(PEER, &[("x-api-key", value)]));
    let guest = |peer| key(&by, request_from(peer, &[]));
    assert_eq!(user(1), user(1));
    let all = [user(1), user(2), with_key("1"), with_key("2"), guest("192.0.2.1:1"), guest("192.0.2.2:1")];
    for (index, key) in all.iter().enumerate() {
        assert!(!all[..index].contains(key), "{index}");
    }
    // With nothing to fall back to, all of them are one.
    let by = header("x-api-key");
    assert_eq!(key(&by, request_from("192.0.2.1:1", &[])), key(&by, request_from("192.0.2.2:1", &[])));
    assert_ne!(key(&by, request_from(PEER, &[])), key(&by, request_from(PEER, &[("x-api-key", "")])));
    // A pair is there if one of the two is.
    let by = header("a").and(header("b")).or(KeyBy::path());
    assert_ne!(key(&by, with_path("/1", &[])), key(&by, with_path("/2", &[])), "both are missing, so it is the path");
    assert_eq!(key(&by, with_path("/1", &[("b", "x")])), key(&by, with_path("/2", &[("b", "x")])));
}

#[test]
fn parts_of_requests() {
    let cookie = KeyBy::cookie("session");
    let of = |line: &str| key(&cookie, request_from(PEER, &[("cookie", line)]));
    assert_eq!(of("session=abc"), of("a=1; session=abc; b=2"));
    assert_ne!(of("session=abc"), of("session=abd"));
    assert_eq!(of("session=abc"), of("session=abc; session=other"), "the first counts");
    assert_eq!(of("other=abc"), key(&cookie, request_from(PEER, &[])), "missing");
    assert_eq!(of("=;;session"), key(&cookie, request_from(PEER, &[])));
    let two = request_from(PEER, &[("cookie", "a=1"), ("cookie", "session=abc")]);
    assert_eq!(key(&cookie, two), of("session=abc"));

    let path = |text| key(&KeyBy::path(), with_path(text, &[]));
    assert_eq!(path("/a?x=1"), path("/a?x=2"));
    assert_ne!(path("/a"), path("/a/"));

    let method = |method| {
        let mut request = request_from(PEER, &[]);
        *request.method_mut() = method;
        key(&KeyBy::method(), request)
    };
    assert_ne!(method(Method::GET), method(Method::POST));

    // Clients are told apart by /64.
    let client = |address| key(&KeyBy::client(peer()), request_from(address, &[]));
    assert_eq!(client("[2001:db8::1]:1"), client("[2001:db8::2]:2"));
    assert_ne!(client("[2001:db8::1]:1"), client("[2001:db8:0:1::1]:1"));
}

#[test]
fn a_secret_makes_the_same_keys_everywhere() {
    let of = |by: KeyBy| key(&by, with_path("/a", &[]));
    assert_eq!(of(KeyBy::path().secret([7; 16])), of(KeyBy::path().secret([7; 16])));
    assert_ne!(of(KeyBy::path().secret([7; 16])), of(KeyBy::path().secret([8; 16])));
    assert_ne!(of(KeyBy::path().secret([7; 16])), of(KeyBy::path()));
    assert_eq!(
        of(KeyBy::path().secret([7; 16]).or(KeyBy::method())),
        of(KeyBy::path().or(KeyBy::method()).secret([7; 16]))
    );
    // So it stays in later versions: servers of a fleet are not replaced at once.
    assert_eq!(format!("{:?}", of(KeyBy::path().secret([7; 16]))), "Key(5055c5ba9658936fbf30f012c38c9e4c)");
}
