//! What answers tell clients of their limits. Cases C03, C04, C13 and I09 are reports by users of other limiters; the
//! structured fields are those of draft-ietf-httpapi-ratelimit-headers-11.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use http::{HeaderName, HeaderValue, Response};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tollgate::http::{Draft, HeaderFields, Policy, RateLimitLayer, Reset};
use tollgate::{ClientIp, Limiter, Quota};
use tower::{Layer, service_fn};

use crate::support::{Answer, answer, answer_by, layer, limiter, ns, peer, request};

fn with_fields(quota: &str, fields: HeaderFields) -> (RateLimitLayer, tollgate::ManualClock) {
    let (limiter, clock) = limiter(quota);
    (RateLimitLayer::builder().policy(Policy::new(limiter, peer())).headers(fields).build(), clock)
}

/// The items of a structured list, with the name and the parameters of each.
fn items(field: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
    let list: List = Parser::new(field).parse().unwrap();
    let item = |entry: &ListEntry| match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(name), params }) => {
            let params = params.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone()));
            (name.as_str().to_owned(), params.collect())
        }
        other => panic!("{other:?} is no String"),
    };
    list.iter().map(item).collect()
}

/// A number of an item.
fn parameter(field: &str, name: &str, parameter: &str) -> i64 {
    let items = items(field);
    let (_, parameters) = items.iter().find(|(item, _)| item == name).unwrap_or_else(|| panic!("no {name} in {field}"));
    let (_, value) = parameters.iter().find(|(name, _)| name == parameter).unwrap();
    value.as_integer().unwrap().into()
}

#[tokio::test]
async fn both_outcomes_tell_how_a_client_stands() {
    let (layer, clock) = layer("2/10s");
    let first = answer(&layer, request()).await;
    assert!(first.is_ok());
    assert_eq!((first.number("x-ratelimit-limit"), first.number("x-ratelimit-remaining")), (2, 1));
    assert_eq!(first.number("x-ratelimit-reset"), 5);
    assert_eq!(first.header("ratelimit-policy"), Some("\"default\";q=2;w=10"));
    assert_eq!(first.header("ratelimit"), Some("\"default\";r=1;t=5"));
    assert_eq!(first.header("retry-after"), None);
    assert_eq!(first.header("cache-control"), None);

    clock.advance(ns(1));
    assert!(answer(&layer, request()).await.is_ok());
    let refused = answer(&layer, request()).await;
    assert_eq!(refused.status, 429);
    assert_eq!((refused.number("x-ratelimit-limit"), refused.number("x-ratelimit-remaining")), (2, 0));
    assert_eq!(refused.number("x-ratelimit-reset"), 10);
    assert_eq!(refused.header("ratelimit-policy"), Some("\"default\";q=2;w=10"));
    assert_eq!(refused.header("ratelimit"), Some("\"default\";r=0;t=5"));
    assert_eq!(refused.number("retry-after"), 5);
    assert_eq!(refused.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn retry_after_is_in_whole_seconds_rounded_up() {
    for (wait, seconds) in [
        (1, 1),
        (200_000_000, 1),
        (999_999_999, 1),
        (1_000_000_000, 1),
        (1_000_000_001, 2),
        (1_200_000_000, 2),
        (59_200_000_000, 60),
    ] {
        let (layer, clock) = layer("1/100s");
        assert!(answer(&layer, request()).await.is_ok());
        clock.advance(ns(100_000_000_000 - wait));
        let refused = answer(&layer, request()).await;
        assert_eq!(refused.number("retry-after"), seconds, "{wait} ns");
        // Who comes back then is admitted.
        clock.advance(Duration::from_secs(seconds));
        assert!(answer(&layer, request()).await.is_ok());
    }
}

/// However late the answer is written, there is a second to wait: the fields are those of the decision.
#[tokio::test]
async fn retry_after_is_never_negative() {
    let (layer, clock) = layer("1/s");
    assert!(answer(&layer, request()).await.is_ok());
    let mut service = layer.layer(service_fn(crate::support::hello));
    let response = tower::Service::call(&mut service, request());
    clock.advance(Duration::from_secs(5));
    let response = response.await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test]
async fn each_family_can_be_left_out() {
    const X: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    const V03: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
    const V11: [&str; 2] = ["ratelimit-policy", "ratelimit"];
    let all: Vec<&str> = X.into_iter().chain(V03).chain(V11).chain(["retry-after"]).collect();
    let fields = HeaderFields::default;
    for (fields, on_both, on_refusals) in [
        (fields(), [&X[..], &V11].concat(), vec!["retry-after"]),
        (fields().x_rate_limit(None), V11.to_vec(), vec!["retry-after"]),
        (fields().rate_limit(None), X.to_vec(), vec!["retry-after"]),
        (fields().rate_limit(Some(Draft::V03)), [X, V03].concat(), vec!["retry-after"]),
        (fields().retry_after(false), [&X[..], &V11].concat(), vec![]),
        (HeaderFields::none(), vec![], vec![]),
        (HeaderFields::none().retry_after(true), vec![], vec!["retry-after"]),
    ] {
        let (layer, _) = with_fields("1/s", fields.clone());
        let present =
            |answer: &Answer| all.iter().copied().filter(|name| answer.header(name).is_some()).collect::<Vec<_>>();
        assert_eq!(present(&answer(&layer, request()).await), on_both, "{fields:?}");
        let refused = answer(&layer, request()).await;
        assert_eq!(present(&refused), [on_both, on_refusals].concat(), "{fields:?}");
        assert_eq!(refused.header("cache-control"), Some("no-store"));
    }
}

#[tokio::test]
async fn the_fields_of_draft_3() {
    let (layer, _) = with_fields("2/10s", HeaderFields::none().rate_limit(Some(Draft::V03)));
    let answer = answer(&layer, request()).await;
    assert_eq!(answer.number("ratelimit-limit"), 2);
    assert_eq!(answer.number("ratelimit-remaining"), 1);
    assert_eq!(answer.number("ratelimit-reset"), 5);
}

#[tokio::test]
async fn reset_may_be_a_moment() {
    let (layer, _) = with_fields("1/100s", HeaderFields::default().x_rate_limit(Some(Reset::Epoch)));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    let reset = answer(&layer, request()).await.number("x-ratelimit-reset");
    assert!((before + 100..=now() + 101).contains(&reset), "{reset}");
}

#[tokio::test]
async fn each_quota_is_an_item() {
    let limiter = |quota: Quota, more: &[Quota]| {
        let builder = Limiter::<ClientIp>::builder(quota).capacity(100).clock(tollgate::ManualClock::at(0));
        more.iter().fold(builder, |builder, quota| builder.and(*quota)).build().unwrap()
    };
    let windows = |quota: Quota| quota.with_algorithm(tollgate::Algorithm::FixedWindow);
    let policy = Policy::new(limiter(windows(Quota::per_minute(100)), &[windows(Quota::per_day(1_000))]), peer())
        .named(["burst", "daily"]);
    let other = Policy::new(limiter(Quota::per_second(1), &[]), peer());
    let unnamed = Policy::new(limiter(Quota::per_hour(7), &[Quota::per_day(9)]), peer());
    let again = Policy::new(limiter(Quota::per_hour(1_000), &[]), peer());
    let layer = RateLimitLayer::builder().policy(policy).policy(other).policy(unnamed).policy(again).build();
    let first = answer(&layer, request()).await;
    assert_eq!(
        first.header("ratelimit-policy").unwrap(),
        "\"burst\";q=100;w=60, \"daily\";q=1000;w=86400, \"default\";q=1;w=1, \
         \"7/h\";q=7;w=3600, \"9/d\";q=9;w=86400, \"default-2\";q=1000;w=3600"
    );
    assert_eq!(
        first.header("ratelimit").unwrap(),
        "\"burst\";r=99;t=60, \"daily\";r=999;t=86400, \"default\";r=0;t=1, \
         \"7/h\";r=6;t=515, \"9/d\";r=8;t=9600, \"default-2\";r=999;t=4"
    );
    // The one that binds.
    assert_eq!((first.number("x-ratelimit-limit"), first.number("x-ratelimit-remaining")), (1, 0));

    let refused = answer(&layer, request()).await;
    assert_eq!(refused.number("retry-after"), 1);
    let field = refused.header("ratelimit").unwrap();
    for (name, parameters) in items(field) {
        let (_, t) = &parameters[1];
        assert!(i64::from(t.as_integer().unwrap()) <= 1, "{name} says to wait longer than Retry-After");
    }
    assert_eq!(parameter(field, "daily", "r"), 999, "nothing was taken of it");
    assert!(refused.body.contains(r#""violated-policies":["default"]"#), "{}", refused.body);
}

/// q units come back in w seconds.
#[tokio::test]
async fn a_policy_tells_the_most_at_once_and_the_time_in_which_it_comes_back() {
    for (quota, told) in [
        ("100/min", "q=100;w=60"),
        ("100/min burst=20", "q=20;w=12"),
        ("10/s burst=50", "q=50;w=5"),
        ("1/10ms", "q=1;w=1"),
        ("7/3s burst=2", "q=2;w=1"),
        ("10/2500ms algorithm=fixed-window", "q=10;w=3"),
        ("10/min algorithm=sliding-window-log", "q=10;w=60"),
        ("10/min algorithm=sliding-window-counter", "q=10;w=60"),
        ("60/min burst=5 algorithm=leaky-bucket", "q=6;w=6"),
    ] {
        let (layer, _) = layer(quota);
        let answer = answer(&layer, request()).await;
        assert_eq!(answer.header("ratelimit-policy").unwrap(), format!("\"default\";{told}"), "{quota}");
    }
}

/// What is changed while the layer runs is told.
#[tokio::test]
async fn changed_quotas_are_told() {
    let (limiter, _) = limiter("10/min");
    let layer = RateLimitLayer::new(limiter.clone(), peer());
    assert_eq!(answer(&layer, request()).await.header("ratelimit-policy"), Some("\"default\";q=10;w=60"));
    limiter.set_quota(&Quota::per_hour(20)).unwrap();
    let changed = answer(&layer, request()).await;
    assert_eq!(changed.header("ratelimit-policy"), Some("\"default\";q=20;w=3600"));
    assert_eq!(changed.header("ratelimit"), Some("\"default\";r=18;t=180"));
}

#[tokio::test]
async fn names_are_strings_whatever_they_are() {
    let (limiter, _) = limiter("1/s");
    let policy = Policy::new(limiter, peer()).named(["say \"hi\\\" \u{e9}\n"]);
    let layer = RateLimitLayer::builder().policy(policy).build();
    let answer = answer(&layer, request()).await;
    assert_eq!(items(answer.header("ratelimit").unwrap())[0].0, "say \"hi\\\" ??");
}

#[tokio::test]
async fn partition_keys_tell_keys_apart_and_nothing_else() {
    let (layer, _) = with_fields("5/s", HeaderFields::default().partition_key(true));
    let pk = |answer: &Answer, field| {
        let parameters = items(answer.header(field).unwrap()).remove(0).1;
        match parameters.into_iter().find(|(name, _)| name == "pk") {
            Some((_, BareItem::ByteSequence(bytes))) => bytes,
            other => panic!("{other:?}"),
        }
    };
    let first = answer(&layer, request()).await;
    let second = answer(&layer, request()).await;
    let other = answer(&layer, crate::support::request_from("192.0.2.2:1", &[])).await;
    assert_eq!(pk(&first, "ratelimit").len(), 8);
    assert_eq!(pk(&first, "ratelimit"), pk(&first, "ratelimit-policy"));
    assert_eq!(pk(&first, "ratelimit"), pk(&second, "ratelimit"));
    assert_ne!(pk(&first, "ratelimit"), pk(&other, "ratelimit"));
}

/// The examples of the draft, section 3.2 and 4.2, are what the library that we write with reads and writes.
#[test]
fn the_examples_of_the_draft_make_the_round_trip() {
    for field in [
        "\"burst\";q=100;w=60,\"daily\";q=1000;w=86400",
        "\"default\";q=100;w=10",
        "\"permin\";q=50;w=60,\"perhr\";q=1000;w=3600",
        "\"peruser\";q=100;w=60;pk=:cHsdsRa894==:",
        "\"peruser\";q=65535;qu=\"content-bytes\";w=10;pk=:sdfjLJUOUH==:",
        "\"default\";r=50;t=30",
        "\"default\";r=999;pk=:dHJpYWwxMjEzMjM=:",
        "\"default\";r=300000000;t=60;pk=:QXBwLTk5OQ==:",
    ] {
        let list: List = Parser::new(field).parse().unwrap();
        let written = sfv::FieldType::serialize(&list).unwrap();
        assert_eq!(items(&written), items(field));
        // But for the spaces, and bits that the examples of two keys have set beyond their ends.
        if !field.contains("UH==") && !field.contains("4==") {
            assert_eq!(written.replace(", ", ","), field);
        }
    }
}

#[tokio::test]
async fn fields_of_the_service_are_kept_unless_told_otherwise() {
    let upstream = |_request| async {
        let mut response = Response::new(Body::empty());
        for (name, value) in [("x-ratelimit-limit", "7"), ("ratelimit", "\"theirs\";r=1"), ("retry-after", "9")] {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Ok::<_, std::convert::Infallible>(response)
    };
    let (layer, _) = layer("5/s");
    let kept = answer_by(layer.layer(service_fn(upstream)), request()).await;
    assert_eq!(kept.header("x-ratelimit-limit"), Some("7"));
    assert_eq!(kept.header("x-ratelimit-remaining"), None, "a family is from one hand");
    assert_eq!((kept.header("ratelimit"), kept.header("ratelimit-policy")), (Some("\"theirs\";r=1"), None));
    assert_eq!(kept.header("retry-after"), Some("9"));

    let (layer, _) = with_fields("5/s", HeaderFields::default().replace(true).rate_limit(None));
    let replaced = answer_by(layer.layer(service_fn(upstream)), request()).await;
    assert_eq!(
        (replaced.header("x-ratelimit-limit"), replaced.header("x-ratelimit-remaining")),
        (Some("5"), Some("4"))
    );
    assert_eq!(replaced.header("ratelimit"), Some("\"theirs\";r=1"), "of which we say nothing");
}
