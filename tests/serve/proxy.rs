//! Behind nginx, which appends to X-Forwarded-For whom it was called by.

use std::path::Path;
use std::process::{Child, Command};

use reqwest::Client;

use crate::process::{Server, wait_for};

/// nginx in front of a server, which stops with the test.
struct Nginx(Child);

impl Nginx {
    fn start(folder: &Path, port: u16, upstream: u16) -> Self {
        let folder_name = folder.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {folder_name}/{name};"))
            .concat();
        let config = format!(
            "daemon off; master_process off; pid {folder_name}/pid; error_log {folder_name}/error.log;
            events {{}}
            http {{
                access_log off; {temporary}
                server {{
                    listen 127.0.0.1:{port};
                    location / {{
                        proxy_pass http://127.0.0.1:{upstream};
                        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                    }}
                }}
            }}"
        );
        let file = folder.join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let child = Command::new("nginx").arg("-c").arg(file).spawn().unwrap();
        wait_for(port);
        Self(child)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that is free, or was a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// How many of five requests from a local address are admitted.
async fn admitted(from: &str, port: u16, forged: impl Fn(usize) -> Option<String>) -> usize {
    let client = Client::builder().local_address(Some(from.parse().unwrap())).build().unwrap();
    let mut admitted = 0;
    for index in 0..5 {
        let mut request = client.get(format!("http://127.0.0.1:{port}/any"));
        if let Some(forged) = forged(index) {
            request = request.header("x-forwarded-for", forged);
        }
        admitted += usize::from(request.send().await.unwrap().status() == 200);
    }
    admitted
}

#[tokio::test]
async fn clients_behind_a_proxy_are_who_the_proxy_says() {
    for trust in [["--trust", "127.0.0.1/32"], ["--trust-hops", "1"]] {
        let server = Server::start(&[&["--quota", "2/365d"][..], &trust].concat());
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let _nginx = Nginx::start(folder.path(), port, server.port());
        // Two clients are two keys.
        assert_eq!(admitted("127.0.0.2", port, |_| None).await, 2);
        assert_eq!(admitted("127.0.0.3", port, |_| None).await, 2);
        // One that forges the header, anew each time, is one.
        assert_eq!(admitted("127.0.0.4", port, |index| Some(format!("6.6.6.{index}"))).await, 2);
        assert_eq!(admitted("127.0.0.5", port, |index| Some(format!("6.6.6.{index}, 127.0.0.1, \"garbage"))).await, 2);
        assert_eq!(server.stats().await["clients"], 4);
    }
}

/// Not trusted, the proxy is the client.
#[tokio::test]
async fn a_proxy_that_is_not_trusted_is_one_client() {
    let server = Server::start(&["--quota", "2/365d"]);
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let _nginx = Nginx::start(folder.path(), port, server.port());
    assert_eq!(admitted("127.0.0.2", port, |index| Some(format!("6.6.6.{index}"))).await, 2);
    assert_eq!(admitted("127.0.0.3", port, |_| None).await, 0);
}
