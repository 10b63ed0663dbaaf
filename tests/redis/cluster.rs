//! Three nodes, between which the keys of clients are shared out.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tollgate::redis::{RedisLimiter, RedisState, Source};
use tollgate::{Algorithm, Quota};

use crate::process::Cluster;

fn limiter(cluster: &Cluster, quota: Quota) -> RedisLimiter {
    let urls = cluster.urls();
    let builder = RedisLimiter::builder(quota).and(Quota::per_hour(1_000).with_algorithm(Algorithm::SlidingWindowLog));
    let builder = builder.and(Quota::per_day(5_000).with_algorithm(Algorithm::FixedWindow));
    builder
        .deadline(Duration::from_millis(100))
        .remember(false)
        .build_on_cluster(urls.iter().map(String::as_str))
        .unwrap()
}

/// A case of the field: keys of one check in several hash slots, an error that failing open then hides.
#[tokio::test(flavor = "multi_thread")]
async fn all_keys_of_a_client_lie_on_one_node() {
    let cluster = Cluster::start();
    let limiter = limiter(&cluster, Quota::per_hour(2));
    limiter.ready().await;
    let clients = (0..1_000).map(|number| match number % 4 {
        0 => format!("client{number}"),
        1 => format!("{{same}}{number}"),
        2 => format!("a}}{{{number}"),
        _ => format!("%{number}{{}}"),
    });
    for client in clients {
        for left in [1, 0] {
            let answer = limiter.check(&client).await;
            assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, left), "{client}");
        }
        assert!(!limiter.check(&client).await.is_allowed(), "{client}");
    }
    assert!(limiter.check("").await.is_allowed(), "nobody is a client, too");
    let stats = limiter.stats();
    assert_eq!((stats.errors, stats.timeouts, stats.alone, stats.opened), (0, 0, 0, 0), "{stats:?}");
    for node in cluster.nodes() {
        let keys = node.keys();
        assert!(keys.len() > 500, "{} keys", keys.len());
        assert!(keys.iter().all(|(_, ttl)| *ttl >= 0));
    }
}

/// The keys of a client, and the nodes that have them and are to have them.
fn place(cluster: &Cluster, limiter: &RedisLimiter, client: &str) -> (String, usize, usize) {
    let key = limiter.keys_of(client)[0].clone();
    let slot = match cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", &key]) {
        redis::Value::Int(slot) => slot,
        other => panic!("{other:?}"),
    };
    let from = usize::try_from(slot / 5_461).unwrap().min(2);
    (slot.to_string(), from, (from + 1) % 3)
}

fn id(cluster: &Cluster, node: usize) -> String {
    match cluster.nodes()[node].command(&["CLUSTER", "MYID"]) {
        redis::Value::BulkString(id) => String::from_utf8(id).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Neither while its slot is moving, nor when it has, is anything lost or counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_slot_moves_is_followed() {
    let cluster = Cluster::start();
    let limiter = limiter(&cluster, Quota::per_hour(100));
    limiter.ready().await;
    assert_eq!(limiter.check("a").await.decision().remaining(), 99);
    let (slot, from, to) = place(&cluster, &limiter, "a");
    let (from_id, to_id) = (id(&cluster, from), id(&cluster, to));
    let (from, to) = (&cluster.nodes()[from], &cluster.nodes()[to]);
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    assert_eq!(limiter.check("a").await.decision().remaining(), 98, "it has not moved yet");
    let port = to.port().to_string();
    let keys = limiter.keys_of("a");
    let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    from.command(&[&migrate[..], &keys.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let answer = limiter.check("a").await;
    assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, 97), "it has, but not its slot");
    for node in [to, from] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    let answer = limiter.check("a").await;
    assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, 96));
    assert_eq!(limiter.stats().opened, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_does_not_stand_in_the_way_of_others() {
    let mut cluster = Cluster::start();
    let limiter = limiter(&cluster, Quota::per_hour(1_000));
    limiter.ready().await;
    let clients: Vec<String> = (0..60).map(|number| format!("client{number}")).collect();
    cluster.nodes_mut()[1].kill();
    for client in clients.iter().chain(&clients) {
        assert!(limiter.check(client).await.is_allowed(), "{client}");
    }
    let (mut here, mut gone) = (0, 0);
    for client in &clients {
        match (limiter.check(client).await.source(), place(&cluster, &limiter, client).1) {
            (Source::Redis, node) => {
                assert_ne!(node, 1);
                here += 1;
            }
            (_, 1) => gone += 1,
            // In a part of the slots of which some are the dead node's.
            (_, _) => (),
        }
    }
    assert!(here > 25 && gone > 10, "{here} were decided, {gone} were not");
    cluster.nodes_mut()[1].restart();
    cluster.wait();
    for _ in 0..1_000 {
        if limiter.state() == RedisState::Closed {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    for client in &clients {
        assert_eq!(limiter.check(client).await.source(), Source::Redis, "{client}");
    }
}

/// Also one that is built while a node hangs: those of the others are found.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_keeps_nobody_from_the_others() {
    let cluster = Cluster::start();
    cluster.nodes()[2].pause();
    let urls = cluster.urls();
    let builder = RedisLimiter::builder(Quota::per_day(1_000)).deadline(Duration::from_millis(100));
    let limiter = builder.build_on_cluster(urls[..2].iter().map(String::as_str)).unwrap();
    let start = Instant::now();
    loop {
        let mut decided = 0;
        for client in 0..40 {
            decided += u32::from(limiter.check(client).await.source() == Source::Redis);
        }
        if decided >= 20 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{decided} of 40: {:?}", limiter.stats());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
