//! The outcome of a replay, for people and for programs.

use std::cmp::{Ordering, Reverse};
use std::fmt::Write;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde::Serialize;
use tollgate::{Algorithm, Quota};

use super::clients::Client;
use super::log::NANOS_PER_SECOND;

/// How many clients are listed.
const TOP: usize = 10;

/// What one client asked for, and how much of it was refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub requests: u64,
    pub refused: u64,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// Those of all quotas, joined.
    quota: String,
    quotas: Vec<Refusals>,
    first: String,
    last: String,
    #[serde(skip)]
    span: Duration,
    requests: u64,
    skipped: u64,
    clients: u64,
    allowed: u64,
    refused: u64,
    refused_clients: u64,
    top: Vec<Row>,
}

/// What one of the quotas refused.
#[derive(Debug, Serialize)]
struct Refusals {
    quota: String,
    #[serde(skip)]
    in_words: String,
    refused: u64,
}

#[derive(Debug, Serialize)]
struct Row {
    client: String,
    requests: u64,
    refused: u64,
}

impl Report {
    /// `quotas` come with how many requests each refused.
    pub fn new(
        quotas: Vec<(&Quota, u64)>,
        (first, last): (u64, u64),
        skipped: u64,
        clients: Vec<(&Client, Count)>,
    ) -> Self {
        let total = |of: fn(&Count) -> u64| clients.iter().map(|(_, count)| of(count)).sum::<u64>();
        let requests = total(|count| count.requests);
        let refused = total(|count| count.refused);
        Self {
            quota: quotas.iter().map(|(quota, _)| quota.to_string()).collect::<Vec<_>>().join(" and "),
            quotas: quotas.into_iter().map(Refusals::new).collect(),
            first: utc(first),
            last: utc(last),
            span: Duration::from_nanos(last - first),
            requests,
            skipped,
            clients: clients.len() as u64,
            allowed: requests - refused,
            refused,
            refused_clients: total(|count| u64::from(count.refused > 0)),
            top: top(clients),
        }
    }

    /// One object on one line.
    pub fn to_json(&self) -> anyhow::Result<Vec<u8>> {
        let mut json = serde_json::to_vec(self).context("cannot write the report as JSON")?;
        json.push(b'\n');
        Ok(json)
    }

    pub fn to_table(&self) -> String {
        let mut table = String::new();
        let mut text = |name: &str, value: &str| line(&mut table, &format!("{name:<16}  {value}"));
        for (index, quota) in self.quotas.iter().enumerate() {
            text(if index == 0 { "Quota" } else { "and" }, &quota.in_words);
        }
        text("Log", &format!("{} to {} ({})", self.first, self.last, span_in_words(self.span)));
        text("", "");

        let rows = self.rows();
        let width = rows.iter().map(|(_, number, _)| thousands(*number).len()).max().unwrap_or(0);
        for (name, number, whole) in rows {
            let share = whole.map_or(String::new(), |whole| percent(number, whole));
            text(&name, &format!("{:>width$}  {share:>7}", thousands(number)));
        }
        text("", "");
        self.write_top(&mut table);
        table
    }

    /// What is counted, and what it is a part of.
    fn rows(&self) -> Vec<(String, u64, Option<u64>)> {
        let row = |name: &str, number, whole| (name.to_owned(), number, whole);
        let mut rows = vec![
            row("Requests", self.requests, None),
            row("Skipped lines", self.skipped, None),
            row("Clients", self.clients, None),
            row("Allowed", self.allowed, Some(self.requests)),
            row("Refused", self.refused, Some(self.requests)),
        ];
        if self.quotas.len() > 1 {
            let by = |Refusals { quota, refused, .. }: &Refusals| {
                let name = quota.split_once(" algorithm=").map_or(quota.as_str(), |(rate, _)| rate);
                row(&format!("  by {name}"), *refused, Some(self.requests))
            };
            rows.extend(self.quotas.iter().map(by));
        }
        rows.push(row("Clients refused", self.refused_clients, Some(self.clients)));
        rows
    }

    fn write_top(&self, table: &mut String) {
        let title = if self.refused > 0 { "Most refused clients" } else { "Busiest clients" };
        let width = self.top.iter().map(|row| row.client.len()).max().unwrap_or(0).max(title.len());
        line(table, &format!("{title:<width$}  {:>13}  {:>13}", "Requests", "Refused"));
        for Row { client, requests, refused } in &self.top {
            let (requests, refused, share) = (thousands(*requests), thousands(*refused), percent(*refused, *requests));
            line(table, &format!("{client:<width$}  {requests:>13}  {refused:>13}  {share:>7}"));
        }
    }
}

impl Refusals {
    fn new((quota, refused): (&Quota, u64)) -> Self {
        Self { quota: quota.to_string(), in_words: in_words(quota), refused }
    }
}

/// One line of a table. Padding at its end is nobody's business.
fn line(table: &mut String, text: &str) {
    table.push_str(text.trim_end());
    table.push('\n');
}

/// The clients with the most refused, then the most requests; in the order of their names where both are equal.
fn top(mut clients: Vec<(&Client, Count)>) -> Vec<Row> {
    let order = |(a, a_count): &(&Client, Count), (b, b_count): &(&Client, Count)| -> Ordering {
        let by_count = Reverse((a_count.refused, a_count.requests)).cmp(&Reverse((b_count.refused, b_count.requests)));
        by_count.then_with(|| a.to_string().cmp(&b.to_string()))
    };
    if clients.len() > TOP {
        clients.select_nth_unstable_by(TOP, order);
        clients.truncate(TOP);
    }
    clients.sort_by(order);
    let row = |(client, count): (&Client, Count)| Row {
        client: client.to_string(),
        requests: count.requests,
        refused: count.refused,
    };
    clients.into_iter().map(row).collect()
}

/// A quota as a sentence would have it, so that one sees whether it was meant.
fn in_words(quota: &Quota) -> String {
    let algorithm = quota.algorithm();
    let mut words = format!("{} per {}", thousands(quota.limit()), period_in_words(quota));
    // Writing to a string cannot fail.
    let _ = match algorithm {
        Algorithm::TokenBucket => write!(words, ", at most {} at once", thousands(quota.burst())),
        Algorithm::LeakyBucket => write!(words, ", at most {} waiting", thousands(quota.burst())),
        _ => Ok(()),
    };
    format!("{words} ({algorithm})")
}

/// The period as the quota's own text has it: in the largest unit in which it is whole.
fn period_in_words(quota: &Quota) -> String {
    let text = quota.to_string();
    let period = text.split(['/', ' ']).nth(1).unwrap_or_default();
    let digits = period.bytes().take_while(u8::is_ascii_digit).count();
    match period.split_at(digits) {
        ("", "s") => "second".to_owned(),
        ("", "min") => "minute".to_owned(),
        ("", "h") => "hour".to_owned(),
        ("", "d") => "day".to_owned(),
        ("", unit) => unit.to_owned(),
        (count, unit) => format!("{count} {unit}"),
    }
}

/// A time of the log, in UTC.
pub fn utc(nanos: u64) -> String {
    // Log times are whole seconds, and end in the year 2554.
    let seconds = i64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| format!("{nanos} ns"), |time| time.to_string())
}

/// The two largest units of a span.
fn span_in_words(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A part of a whole, to a tenth of a percent.
fn percent(part: u64, whole: u64) -> String {
    let permille = (u128::from(part) * 1000 + u128::from(whole / 2)) / u128::from(whole.max(1));
    format!("{}.{} %", permille / 10, permille % 10)
}

/// A number with its digits in groups of three.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
