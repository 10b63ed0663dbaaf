//! A server of our own, which stops with the test.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

pub struct Server {
    child: Child,
    pub url: String,
    log: BufReader<std::process::ChildStderr>,
}

impl Server {
    /// Starts it on a port that is free.
    pub fn start(args: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("tollgate"))
            .args(["serve", "--listen", "127.0.0.1:0", "--capacity", "1000"])
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        // It may have something else to say first.
        let mut before = String::new();
        let url = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "{before}");
            match line.trim().strip_prefix("tollgate: listening on ") {
                Some(url) => break url.to_owned(),
                None => before.push_str(&line),
            }
        };
        Self { child, url, log }
    }

    pub fn port(&self) -> u16 {
        self.url.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// What its JSON says.
    pub async fn stats(&self) -> Value {
        reqwest::get(format!("{}/stats.json", self.url)).await.unwrap().json().await.unwrap()
    }

    /// Asks it to stop, and tells what it has written since it started.
    pub fn stop(mut self) -> String {
        // By the command, as there is nothing in std that sends a signal.
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success());
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until somebody listens.
pub fn wait_for(port: u16) {
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::yield_now();
    }
}
