//! `replay`: which lines are requests, when they came and whose they are; and how the outcome is told.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Outcome, output, project_file, replay_json, run};

/// A line in the common format.
fn common(client: &str, time: &str) -> String {
    format!("{client} - - [{time}] \"GET / HTTP/1.1\" 200 12\n")
}

/// A line in the common format, some seconds after 10:00 UTC.
fn at(client: &str, seconds: u32) -> String {
    common(client, &format!("17/May/2015:10:{:02}:{:02} +0000", seconds / 60, seconds % 60))
}

/// The requests and the refused of one client of a report.
fn counts(report: &Value, client: &str) -> Option<(u64, u64)> {
    let row = report["top"].as_array()?.iter().find(|row| row["client"] == client)?;
    Some((row["requests"].as_u64()?, row["refused"].as_u64()?))
}

/// `[requests, skipped]` of a log.
fn read_as(format: &str, log: impl Into<Vec<u8>>) -> [u64; 2] {
    let (report, _) = replay_json("10/min", format, log);
    ["requests", "skipped"].map(|name| report[name].as_u64().unwrap())
}

#[test]
fn refuses_of_the_real_log_what_an_independent_count_refused() {
    let log = project_file("../shared/data/access.log");
    if !log.exists() {
        eprintln!("SKIPPED: the real log is not here ({})", log.display());
        return;
    }
    for (quota, refused) in
        [("10/min", 1013), ("10/min algorithm=fixed-window", 1729), ("10/min algorithm=sliding-window-counter", 1729)]
    {
        let text = output(&["replay", "--quota", quota, "--json", log.to_str().unwrap()], "");
        let report: Value = serde_json::from_str(&text).unwrap();
        let numbers =
            ["requests", "skipped", "clients", "refused", "allowed"].map(|name| report[name].as_u64().unwrap());
        assert_eq!(numbers, [9999, 0, 1753, refused, 9999 - refused], "{quota}");
    }
}

#[test]
fn prints_a_table_for_people() {
    let mut log: String = (0..1200).map(|second| at("192.0.2.1", second / 20)).collect();
    log += &at("192.0.2.2", 90);
    log += &at("host.example", 3_000);
    assert_eq!(
        output(&["replay", "--quota", "10/min burst=40", "-"], log),
        "\
Quota             10 per minute, at most 40 at once (token-bucket)
Log               2015-05-17T10:00:00Z to 2015-05-17T10:50:00Z (50 min 0 s)

Requests          1,202
Skipped lines         0
Clients               3
Allowed              51    4.2 %
Refused           1,151   95.8 %
Clients refused       1   33.3 %

Most refused clients       Requests        Refused
192.0.2.1                     1,200          1,151   95.9 %
192.0.2.2                         1              0    0.0 %
host.example                      1              0    0.0 %
"
    );
}

#[test]
fn says_the_quota_in_words() {
    for (quota, words) in [
        ("1/s", "1 per second, at most 1 at once (token-bucket)"),
        ("1500/h algorithm=fixed-window", "1,500 per hour (fixed-window)"),
        ("5/2500ms burst=10 algorithm=gcra", "5 per 2500 ms, at most 10 at once (token-bucket)"),
        ("5/d algorithm=sliding-window-counter", "5 per day (sliding-window-counter)"),
        ("120/120sec", "120 per 2 min, at most 120 at once (token-bucket)"),
    ] {
        let table = output(&["replay", "--quota", quota, "-"], at("192.0.2.1", 0));
        assert_eq!(table.lines().next(), Some(format!("Quota             {words}").as_str()));
    }
}

#[test]
fn takes_several_quotas_and_says_which_refused() {
    // Three at once: the third is too much for the second. Ten seconds later two more: the last is too much for the minute.
    let log = [0, 0, 0, 10, 10].map(|second| at("192.0.2.9", second)).concat();
    let json = output(&["replay", "--quota", "2/s", "--quota", "3/min", "--json", "-"], log.clone());
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["allowed"], &report["refused"]), (&json!(3), &json!(2)));
    assert_eq!(report["quota"], "2/s and 3/min");
    assert_eq!(report["quotas"], json!([{"quota": "2/s", "refused": 1}, {"quota": "3/min", "refused": 1}]));
    let table = output(&["replay", "--quota", "2/s", "--quota", "3/min", "-"], log);
    for line in [
        "Quota             2 per second",
        "and               3 per minute",
        "  by 2/s          1",
        "  by 3/min        1",
    ] {
        assert!(table.contains(line), "{line:?} in\n{table}");
    }
}

#[test]
fn prints_one_json_object_for_programs() {
    let log = [at("192.0.2.9", 0), at("192.0.2.9", 1), at("192.0.2.10", 2), "?\n".to_owned()].concat();
    let (report, _) = replay_json("1/min", "auto", log);
    assert_eq!(
        report,
        json!({
            "quota": "1/min",
            "quotas": [{"quota": "1/min", "refused": 1}],
            "first": "2015-05-17T10:00:00Z",
            "last": "2015-05-17T10:00:02Z",
            "requests": 3,
            "skipped": 1,
            "clients": 2,
            "allowed": 2,
            "refused": 1,
            "refused_clients": 1,
            "top": [
                {"client": "192.0.2.9", "requests": 2, "refused": 1},
                {"client": "192.0.2.10", "requests": 1, "refused": 0},
            ],
        })
    );
}

#[test]
fn lists_ten_clients_by_refused_then_requests_then_name() {
    // Two refused of three; one of two, twice; none of one, many times.
    let mut log = String::new();
    for client in ["192.0.2.33", "192.0.2.4", "192.0.2.33", "192.0.2.20", "192.0.2.4", "192.0.2.20", "192.0.2.33"] {
        log += &at(client, 0);
    }
    for host in (100..120).rev() {
        log += &at(&format!("192.0.2.{host}"), 0);
    }
    let (report, _) = replay_json("1/min", "auto", log);
    let clients: Vec<&str> =
        report["top"].as_array().unwrap().iter().map(|row| row["client"].as_str().unwrap()).collect();
    let expected =
        ["33", "20", "4", "100", "101", "102", "103", "104", "105", "106"].map(|host| format!("192.0.2.{host}"));
    assert_eq!(clients, expected);
}

#[test]
fn puts_requests_in_order_of_time() {
    // In the order of the log the second would come too soon.
    let (report, _) = replay_json("1/59s", "auto", [at("192.0.2.1", 59), at("192.0.2.1", 0)].concat());
    assert_eq!(counts(&report, "192.0.2.1"), Some((2, 0)));
}

#[test]
fn aligns_windows_to_the_epoch() {
    let log = [at("192.0.2.1", 59), at("192.0.2.1", 60), at("192.0.2.1", 119)].concat();
    let (report, _) = replay_json("1/min algorithm=fixed-window", "auto", log);
    assert_eq!(counts(&report, "192.0.2.1"), Some((3, 1)));
}

#[test]
fn honours_the_time_zone_of_each_line() {
    let log = [
        common("192.0.2.1", "17/May/2015:10:05:03 +0000"),
        common("192.0.2.1", "17/May/2015:12:05:03 +0200"),
        common("192.0.2.1", "17/May/2015:02:35:03 -0730"),
        common("192.0.2.1", "18/May/2015:00:05:02 +1400"),
        common("192.0.2.1", "31/Dec/2015:23:59:60 +0000"),
    ];
    let (report, _) = replay_json("1/s burst=3", "auto", log.concat());
    // The fourth is a second earlier: it has its one unit back before the others take three.
    assert_eq!(counts(&report, "192.0.2.1"), Some((5, 0)));
    assert_eq!((&report["first"], &report["last"]), (&json!("2015-05-17T10:05:02Z"), &json!("2016-01-01T00:00:00Z")));
}

#[test]
fn tells_minutes_apart_that_differ_only_in_their_zone() {
    let log = ["+0000", "+0100", "-0100"].map(|zone| common("192.0.2.1", &format!("17/May/2015:10:05:03 {zone}")));
    let (report, _) = replay_json("1/h", "auto", log.concat());
    assert_eq!(counts(&report, "192.0.2.1"), Some((3, 0)));
}

#[test]
fn knows_clients_by_address_and_ipv6_by_its_64() {
    let clients = [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("::FFFF:c633:6408", "198.51.100.8"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:DB8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("::1", "::/64"),
        ("crawler.example", "crawler.example"),
        ("Crawler.example", "Crawler.example"),
        ("-", "-"),
        ("999.1.1.1", "999.1.1.1"),
        ("10.0.0.1:8080", "10.0.0.1:8080"),
    ];
    for (field, client) in clients {
        let (report, _) = replay_json("10/min", "auto", at(field, 0));
        assert_eq!(counts(&report, client), Some((1, 0)), "{field}");
    }
    let (report, _) = replay_json("1/min", "auto", clients.map(|(field, _)| at(field, 0)).concat());
    assert_eq!(report["clients"], 10);
    assert_eq!(counts(&report, "198.51.100.7"), Some((2, 1)));
    assert_eq!(counts(&report, "2001:db8:0:1::/64"), Some((2, 1)));
}

#[test]
fn shows_a_client_that_is_no_text_without_sending_it_to_the_terminal() {
    let line = b"\x1b[31m\xff - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 12\n";
    let (report, _) = replay_json("1/min", "auto", line.as_slice());
    assert_eq!(counts(&report, r"\x1b[31m\xff"), Some((1, 0)));
}

#[test]
fn tells_the_formats_apart() {
    let common = at("192.0.2.1", 0);
    let line = common.trim_end();
    let combined = format!("{line} \"https://a.example/\" \"Mozilla/5.0\"\n");
    let extended = format!("{line} \"-\" \"Mozilla/5.0\" \"203.0.113.9\" 0.004\n");
    let all = [common.as_str(), combined.as_str(), extended.as_str()].concat();
    assert_eq!(read_as("auto", all.as_str()), [3, 0]);
    assert_eq!(read_as("common", all.as_str()), [1, 2]);
    assert_eq!(read_as("combined", all.as_str()), [2, 1]);
}

#[test]
fn reads_whatever_servers_write() {
    let head = b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] ".as_slice();
    let tails: [&[u8]; 10] = [
        b"\"GET /caf\xe9 HTTP/1.1\" 200 12 \"-\" \"Mozilla \xff\xfe\"",
        b"\"GET /\\\"quoted\\\" HTTP/1.1\" 200 12 \"-\" \"say \\\"hello\\\"\"",
        b"\"GET /\\\\\" 200 12 \"\\\\\" \"\\\\\"",
        b"\"\\x16\\x03\\x01\" 400 226",
        b"\"\\x16\\x03\\x01\" 400 226 \"-\" \"-\"",
        b"\"\" 408 - \"\" \"\"",
        b"\"-\" 000 0",
        b"\"GET /[17/May/2016:10:05:03 +0000] \\\"x\\\" HTTP/1.1\" 304 -",
        b"\"GET / HTTP/1.1\" 200 18446744073709551616",
        b"\"GET / HTTP/1.1\" 200 12 \"-\" \"\t\"",
    ];
    for tail in tails {
        assert_eq!(read_as("auto", [head, tail, b"\n"].concat()), [1, 0], "{}", tail.escape_ascii());
    }
    // A user may call himself whatever he likes.
    for user in ["J. Random Hacker", "x [01/Jan/1971:00:00:00 +0000] \\\"GET /", "[", "x ["] {
        let line = format!("192.0.2.1 - {user} [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 12\n");
        let (report, _) = replay_json("1/min", "auto", line);
        assert_eq!(report["first"], "2015-05-17T10:05:03Z", "{user}");
    }
}

#[test]
fn takes_line_ends_and_marks_as_they_come() {
    let (one, two) = (at("192.0.2.1", 0), at("192.0.2.2", 1));
    let windows = [one.as_str(), two.as_str()].concat().replace('\n', "\r\n");
    assert_eq!(read_as("common", windows.as_str()), [2, 0]);
    assert_eq!(read_as("common", windows.trim_end()), [2, 0]);
    assert_eq!(read_as("auto", [one.as_str(), two.trim_end()].concat()), [2, 0]);
    let (report, _) = replay_json("1/min", "auto", format!("\u{feff}{one}{one}"));
    assert_eq!(counts(&report, "192.0.2.1"), Some((2, 1)));
}

/// Lines that are no request, each with a word of the reason.
const JUNK: [(&[u8], &str); 23] = [
    (b"", "blank"),
    (b" \t ", "blank"),
    (b"garbage", "client"),
    (b"\xff\x00\x01", "client"),
    (b" - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1", "client"),
    (b"192.0.2.1 - - - \"GET /\" 200 1", "before a quoted request"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03] \"GET /\" 200 1", "before a quoted request"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000]", "before a quoted request"),
    (b"192.0.2.1 - - [31/Feb/2015:10:05:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2015:25:05:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2015:10:60:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2015:10:05:61 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/Mai/2015:10:05:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +9900] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/1969:10:05:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2999:10:05:03 +0000] \"GET /\" 200 1", "impossible"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET / HT", "does not end"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\\", "does not end"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 20", "status"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1k", "status"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1 \"-\"", "agent"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1 \"-\" \"Mozi", "agent"),
    (b"192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1 \"-\" \"Mozilla\"5", "agent"),
];

#[test]
fn skips_what_is_no_request_and_says_why() {
    for (junk, reason) in JUNK {
        let log = [at("192.0.2.1", 0).as_bytes(), junk, b"\n", at("192.0.2.1", 1).as_bytes()].concat();
        let (report, stderr) = replay_json("1/min", "auto", log);
        assert_eq!((&report["requests"], &report["skipped"]), (&json!(2), &json!(1)), "{}", junk.escape_ascii());
        assert!(stderr.starts_with("tollgate: standard input: skipped line 2: "), "{stderr}");
        assert!(stderr.contains(reason), "{stderr} has no {reason}");
        assert_eq!(stderr.lines().count(), 1);
    }
}

#[test]
fn shows_the_first_three_skipped_lines_and_counts_the_others() {
    let lines = [at("192.0.2.1", 0), "a\n".into(), "\n".into(), at("192.0.2.1", 1), "b\nc\nd\n".into()];
    let Outcome { code, stdout, stderr } = run(&["replay", "--quota", "10/min", "-"], lines.concat());
    assert_eq!(code, Some(0));
    assert!(stdout.contains("\nSkipped lines     5\n"), "{stdout}");
    let numbers: Vec<_> = stderr.lines().filter_map(|line| line.split("skipped ").nth(1)?.split(':').next()).collect();
    assert_eq!(numbers, ["line 2", "line 3", "line 5", "2 more"]);
}

#[test]
fn draws_no_progress_bar_into_a_pipe() {
    let mut log = String::new();
    for second in 0..300_000 {
        let _ = write!(log, "{}", at("192.0.2.1", second / 1000));
    }
    assert!(log.len() > 17 << 20, "long enough for a bar");
    output(&["replay", "--quota", "10/min", "-"], log);
}

#[test]
fn falls_silent_when_nobody_reads_on() {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("tollgate"))
        .args(["replay", "--quota", "10/min", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe is closed before the log ends, so before there is anything to print.
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(at("192.0.2.1", 0).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}
