//! `sample-log`: the same day for the same seed, with everything in it that real logs have.

use std::collections::HashSet;
use std::io::Read;
use std::process::{Command, Stdio};

use super::{evening_log, output};

fn client(line: &str) -> &str {
    line.split(' ').next().unwrap_or("")
}

fn sample(args: &[&str]) -> String {
    output(&[&["sample-log"], args].concat(), "")
}

#[test]
fn the_evening_log_is_what_its_seed_makes() {
    let committed = std::fs::read_to_string(evening_log()).unwrap();
    assert!(sample(&["--seed", "2026"]) == committed, "tests/data/evening.log: write it with sample-log --seed 2026");
}

#[test]
fn another_seed_makes_another_day() {
    let one = sample(&["--seed", "1", "--lines", "500"]);
    assert_eq!(one, sample(&["--lines", "500", "--seed", "1"]));
    assert_ne!(one, sample(&["--seed", "2", "--lines", "500"]));
}

#[test]
fn writes_as_many_lines_as_asked_for() {
    for lines in [0, 1, 7, 8, 999, 50_000] {
        let text = sample(&["--seed", "3", "--lines", &lines.to_string()]);
        assert_eq!(text.matches('\n').count(), lines);
    }
}

#[test]
fn the_evening_has_what_real_logs_have() {
    let log = std::fs::read_to_string(evening_log()).unwrap();
    assert_eq!(log.lines().count(), 20_000);
    let times: Vec<&str> = log.lines().filter_map(|line| line.split(['[', ']']).nth(1)).collect();
    assert!(times.windows(2).any(|pair| pair[0] > pair[1]), "lines are a little out of order");

    let scraped: HashSet<&str> = log.lines().map(client).filter(|c| c.starts_with("2001:db8:bad:cafe:")).collect();
    assert!(scraped.len() > 500, "{} addresses of one /64", scraped.len());
    let v6: HashSet<&str> = log.lines().map(client).filter(|c| c.contains(':') && !scraped.contains(c)).collect();
    assert!(v6.len() > 50, "{} other IPv6 addresses", v6.len());
    let v4: HashSet<&str> = log.lines().map(client).filter(|c| c.starts_with("198.1")).collect();
    assert!(v4.len() > 500, "{} visitors by IPv4", v4.len());

    let trending = |hour: &str| {
        let of_hour = log.lines().filter(|line| line.contains(hour));
        of_hour.filter(|line| line.contains("GET /trending")).count()
    };
    assert!(trending(":20:") > 5 * trending(":19:").max(trending(":21:")));
    let hits = |hour: &str| log.lines().filter(|line| line.contains(&format!("2026:{hour}:"))).count();
    assert!(hits("19") > 4 * hits("04"), "night is quiet");
    for agent in ["Googlebot", "bingbot", "\\\"all your videos\\\"", "python-requests"] {
        assert!(log.contains(agent), "{agent}");
    }
}

#[test]
fn stops_without_a_word_when_nobody_reads_on() {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("tollgate"))
        .args(["sample-log", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Far less than the log, far more than fits into a pipe.
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}
