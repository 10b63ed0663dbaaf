//! Two servers on one limit.

use crate::process::Server;
use crate::redis_process::{Redis, eventually};

async fn status(server: &Server) -> u16 {
    reqwest::get(format!("{}/any", server.url)).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_a_limit_until_redis_is_gone() {
    let mut redis = Redis::start();
    let url = redis.url();
    let start = |more: &[&str]| Server::start(&[&["--quota", "3/365d", "--redis", &url], more].concat());
    let servers = [start(&[]), start(&["--redis-down", "local", "--redis-servers", "3"])];
    let mut statuses = Vec::new();
    for place in 0..6 {
        statuses.push(status(&servers[place % 2]).await);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
    let stats = servers[0].stats().await;
    assert_eq!((stats["allowed"].as_u64(), stats["refused"].as_u64()), (Some(2), Some(1)), "{stats}");
    assert_eq!(stats["redis"]["state"], "Closed", "{stats}");

    redis.restart();
    redis.kill();
    // Who was refused is remembered, so that these are others.
    let servers = [start(&[]), start(&["--redis-down", "local", "--redis-servers", "3"])];
    for _ in 0..3 {
        assert_eq!(status(&servers[0]).await, 200, "it fails open");
    }
    assert_eq!((status(&servers[1]).await, status(&servers[1]).await), (200, 429), "a third of three");
    redis.restart();
    let runtime = tokio::runtime::Handle::current();
    eventually("they notice that it is back", || {
        let is_closed = |server: &Server| {
            tokio::task::block_in_place(|| runtime.block_on(server.stats()))["redis"]["state"] == "Closed"
        };
        servers.iter().all(is_closed)
    });
    let mut statuses = Vec::new();
    for place in 0..5 {
        statuses.push(status(&servers[place % 2]).await);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429], "it came back empty");
}
