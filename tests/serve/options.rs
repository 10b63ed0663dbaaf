//! What the server can be told, and what it says of what it cannot.

use assert_cmd::Command;

use crate::process::Server;

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> reqwest::Response {
    let client = reqwest::Client::new();
    let request = headers
        .iter()
        .fold(client.get(format!("{}{path}", server.url)), |request, (name, value)| request.header(*name, *value));
    request.send().await.unwrap()
}

fn has(response: &reqwest::Response, name: &str) -> bool {
    response.headers().contains_key(name)
}

#[tokio::test]
async fn what_tells_of_limits_is_not_limited() {
    let server = Server::start(&["--quota", "1/365d"]);
    assert_eq!(get(&server, "/", &[]).await.status(), 200);
    assert_eq!(get(&server, "/", &[]).await.status(), 429);
    assert_eq!(get(&server, "/any", &[("accept", "text/html")]).await.status(), 429);
    for path in ["/stats.json", "/metrics", "/healthz"] {
        assert_eq!(get(&server, path, &[]).await.status(), 200, "{path}");
    }
    let page = get(&server, "/", &[("accept", "text/html,*/*;q=0.8")]).await;
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().starts_with("<!doctype html>"));
    let metrics = get(&server, "/metrics", &[]).await.text().await.unwrap();
    assert!(metrics.contains("tollgate_decisions_total{policy=\"default\",decision=\"refused\"} 2"), "{metrics}");
    assert!(metrics.contains("tollgate_clients 1\n"), "{metrics}");
}

#[tokio::test]
async fn fields_and_answers_can_be_chosen() {
    let quotas = ["--quota", "1/365d", "--quota", "9/d algorithm=fixed-window"];
    let server = Server::start(&[&quotas[..], &["--headers", "ratelimit-03,retry-after", "--answer", "text"]].concat());
    let response = get(&server, "/any", &[]).await;
    assert!(has(&response, "ratelimit-limit") && !has(&response, "ratelimit") && !has(&response, "x-ratelimit-limit"));
    let refused = get(&server, "/any", &[]).await;
    assert_eq!(refused.headers()["retry-after"], "31536000");
    assert!(refused.text().await.unwrap().starts_with("Too many requests."));

    let server = Server::start(&[&quotas[..], &["--headers", "none"]].concat());
    get(&server, "/any", &[]).await;
    let refused = get(&server, "/any", &[]).await;
    assert_eq!(refused.status(), 429);
    assert!(!has(&refused, "retry-after") && !has(&refused, "ratelimit"));

    let server = Server::start(&[&quotas[..], &["--reset", "epoch"]].concat());
    let reset: u64 = get(&server, "/any", &[]).await.headers()["x-ratelimit-reset"].to_str().unwrap().parse().unwrap();
    assert!(reset > 1_700_000_000 + 31_536_000, "{reset}");
}

#[tokio::test]
async fn networks_can_be_let_in_and_shut_out() {
    let server = Server::start(&["--quota", "1/365d", "--exempt", "127.0.0.0/8"]);
    for _ in 0..3 {
        assert_eq!(get(&server, "/any", &[]).await.status(), 200);
    }
    let server = Server::start(&["--quota", "1/365d", "--deny", "127.0.0.1/32"]);
    assert_eq!(get(&server, "/any", &[]).await.status(), 403);

    let header = ["--client-header", "X-Real-IP", "--trust", "127.0.0.1/32", "--deny", "203.0.113.0/24"];
    let server = Server::start(&[&["--quota", "1/365d"][..], &header].concat());
    assert_eq!(get(&server, "/any", &[("x-real-ip", "203.0.113.9")]).await.status(), 403);
    assert_eq!(get(&server, "/any", &[("x-real-ip", "198.51.100.9")]).await.status(), 200);
    assert_eq!(get(&server, "/any", &[("x-real-ip", "198.51.100.9")]).await.status(), 429);
}

#[tokio::test]
async fn a_dry_run_refuses_nothing() {
    let server = Server::start(&["--quota", "1/365d", "--dry-run"]);
    for _ in 0..3 {
        assert_eq!(get(&server, "/any", &[]).await.status(), 200);
    }
    let stats = server.stats().await;
    assert_eq!((&stats["refused"], &stats["dry_run"]), (&2.into(), &true.into()));
    let log = server.stop();
    assert!(log.contains("dry_run=true"), "{log}");
}

#[test]
fn what_cannot_be_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (args, message) in [
        (&["--quota", "0/s"][..], "quota \"0/s\""),
        (&["--quota", "1/s", "--listen", &address], "cannot listen on 127.0.0.1:"),
        (&["--quota", "1/s", "--listen", "nowhere"], "cannot listen on nowhere"),
        (&["--quota", "1/s", "--trust", "10.0.0.0/33"], "10.0.0.0/33"),
        (&["--quota", "1/s", "--trust", "10.0.0.0/8", "--trust-hops", "1"], "cannot be used with"),
        (&["--quota", "1/s", "--client-header", "a b"], "is no name of a header"),
        (&["--quota", "1/s", "--capacity", "0"], "capacity"),
        (&[], "--quota"),
    ] {
        let output = Command::new(assert_cmd::cargo::cargo_bin!("tollgate")).arg("serve").args(args).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(message), "{args:?}: {error}");
    }
}
