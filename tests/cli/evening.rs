//! The sample log counted once more, by models that share nothing with the limiter or its log reader.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::{evening_log, run};

/// `client, seconds of the day` of each request, in order of time. Knows only the lines of this one log.
fn requests() -> (Vec<(String, u64)>, usize) {
    let text = std::fs::read_to_string(evening_log()).unwrap();
    let mut requests: Vec<(String, u64)> = text.lines().filter_map(request).collect();
    let skipped = text.lines().count() - requests.len();
    requests.sort_by_key(|(_, second)| *second);
    (requests, skipped)
}

fn request(line: &str) -> Option<(String, u64)> {
    let (head, tail) = line.split_once(" - - [21/Jun/2026:")?;
    // The whole line has its six quotes, besides those that are escaped.
    if tail.replace("\\\"", "").matches('"').count() != 6 {
        return None;
    }
    let time: Vec<u64> = tail.split(' ').next()?.split(':').map(|part| part.parse().unwrap()).collect();
    Some((client(head), time[0] * 3600 + time[1] * 60 + time[2]))
}

/// The client of an address: the generator writes no `::` within the first four groups of an IPv6 address.
fn client(address: &str) -> String {
    if !address.contains(':') {
        return address.to_owned();
    }
    let groups: Vec<&str> = address.split(':').take(4).collect();
    assert!(groups.iter().all(|group| !group.is_empty()), "{address}");
    let network = groups.join(":");
    format!("{}::/64", network.strip_suffix(":0").unwrap_or(&network))
}

/// A bucket of ten that drops one token every six seconds, in tokens of six parts.
#[derive(Default)]
struct Buckets(HashMap<String, (u64, u64)>);

impl Buckets {
    fn admits(&mut self, client: &str, second: u64) -> bool {
        let (tokens, last) = self.0.get(client).copied().unwrap_or((60, second));
        let tokens = (tokens + second - last).min(60);
        let admits = tokens >= 6;
        self.0.insert(client.to_owned(), (if admits { tokens - 6 } else { tokens }, second));
        admits
    }
}

/// Admissions by client and minute.
#[derive(Default)]
struct Minutes(HashMap<(String, u64), u64>);

impl Minutes {
    fn fixed(&mut self, client: &str, second: u64) -> bool {
        let count = self.0.entry((client.to_owned(), second / 60)).or_default();
        let admits = *count < 10;
        *count += u64::from(admits);
        admits
    }

    fn sliding(&mut self, client: &str, second: u64) -> bool {
        let minute = second / 60;
        let before = match minute.checked_sub(1) {
            Some(before) => self.0.get(&(client.to_owned(), before)).copied().unwrap_or(0),
            None => 0,
        };
        let count = self.0.entry((client.to_owned(), minute)).or_default();
        let admits = before * (60 - second % 60) + (*count + 1) * 60 <= 10 * 60;
        *count += u64::from(admits);
        admits
    }
}

/// What a replay should report, without the quota and the times.
fn expected(mut admits: impl FnMut(&str, u64) -> bool) -> Value {
    let (requests, skipped) = requests();
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (client, second) in &requests {
        let count = counts.entry(client).or_default();
        count.0 += 1;
        count.1 += u64::from(!admits(client, *second));
    }
    let refused: u64 = counts.values().map(|count| count.1).sum();
    let refused_clients: HashSet<_> = counts.iter().filter(|(_, count)| count.1 > 0).collect();
    let mut rows: Vec<_> = counts.iter().map(|(client, &(requests, refused))| (refused, requests, *client)).collect();
    rows.sort_by_key(|&(refused, requests, client)| (u64::MAX - refused, u64::MAX - requests, client));
    let top: Vec<Value> = rows
        .iter()
        .take(10)
        .map(|(refused, requests, client)| json!({"client": client, "requests": requests, "refused": refused}))
        .collect();
    json!({
        "requests": requests.len(),
        "skipped": skipped,
        "clients": counts.len(),
        "allowed": requests.len() as u64 - refused,
        "refused": refused,
        "refused_clients": refused_clients.len(),
        "top": top,
    })
}

#[track_caller]
fn check(quota: &str, expected: &Value) {
    let outcome = run(&["replay", "--quota", quota, "--json", evening_log().to_str().unwrap()], "");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&report[name], value, "{name}");
    }
    assert!(report["refused"].as_u64() > Some(1000) && report["skipped"].as_u64() > Some(2), "{report}");
}

#[test]
fn token_bucket() {
    let mut buckets = Buckets::default();
    check("10/min", &expected(|client, second| buckets.admits(client, second)));
}

#[test]
fn fixed_window() {
    let mut minutes = Minutes::default();
    check("10/min algorithm=fixed-window", &expected(|client, second| minutes.fixed(client, second)));
}

#[test]
fn sliding_window_counter() {
    let mut minutes = Minutes::default();
    check("10/min algorithm=sliding-window-counter", &expected(|client, second| minutes.sliding(client, second)));
}
