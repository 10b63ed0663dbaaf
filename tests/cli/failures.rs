//! Whatever is wrong with what the user gave: one clear line, exit code 2, nothing half-written.

use super::{evening_log, failure, output, run};

#[track_caller]
fn replay_failure(log: &str, input: impl Into<Vec<u8>>) -> String {
    failure(&["replay", "--quota", "10/min", log], input)
}

#[test]
fn an_unreadable_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no-such.log");
    for args in [["replay", "--quota", "10/min"], ["simulate", "--quota", "10/min"]] {
        for path in [missing.as_path(), folder.path()] {
            let path = path.to_str().unwrap();
            let message = failure(&[args[0], args[1], args[2], path], "");
            assert!(message.starts_with(&format!("{path}: ")), "{message}");
        }
    }
}

#[test]
fn a_log_without_requests_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.log");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    assert_eq!(replay_failure(empty, ""), format!("{empty}: it is empty"));
    assert_eq!(replay_failure("-", ""), "standard input: it is empty");
    let message = replay_failure("-", "t_ns,key,cost\n0,a,1\n");
    assert!(message.contains("none of its lines (2) is a request; line 1: "), "{message}");
    let common_only = "192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET /\" 200 1\n";
    let message = failure(&["replay", "--quota", "1/s", "--format", "combined", "-"], common_only);
    assert!(message.contains("(1)") && message.contains("agent"), "{message}");
}

#[test]
fn a_bad_quota_is_told_what_would_be_right() {
    let log = evening_log();
    for (quota, clue) in [
        ("", "LIMIT/PERIOD"),
        ("10", "LIMIT/PERIOD"),
        ("10/fortnight", "unit"),
        ("-1/s", "whole number"),
        ("0/min", "at least 1"),
        ("10/0s", "at least 1"),
        ("10/min burst=0", "at least 1"),
        ("10/min colour=red", "burst=N"),
        ("10/min algorithm=magic", "token-bucket"),
        ("10/min burst=20 algorithm=fixed-window", "no burst"),
        ("4294967296/4294967296us algorithm=sliding-window-counter", "too large"),
        ("18446744073709551616/s", "larger"),
    ] {
        for command in ["replay", "simulate"] {
            let message = failure(&[command, "--quota", quota, log.to_str().unwrap()], "");
            assert!(message.starts_with(&format!("quota {quota:?}: ")), "{message}");
            assert!(message.contains(clue), "{message:?} has no {clue:?}");
        }
    }
}

#[test]
fn times_too_far_apart_are_named() {
    let line = |year: u32| format!("192.0.2.1 - - [17/May/{year}:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let message = replay_failure("-", line(1971) + &line(2553));
    assert!(message.contains("from 1971-05-17T10:05:03Z to 2553-05-17T10:05:03Z"), "{message}");
    // A counter that leaves too little room for the windows of a day, though not for those of a second.
    let quota = "1073741823/1073741823us algorithm=sliding-window-counter";
    let message = failure(&["replay", "--quota", quota, evening_log().to_str().unwrap()], "");
    assert!(message.contains("too large") && message.contains("to 2026-06-21T23:59:59Z"), "{message}");
}

#[test]
fn wrong_arguments_are_refused_with_a_hint() {
    for (args, clue) in [
        (&["replay", "-"][..], "--quota <TEXT>"),
        (&["replay", "--quota", "1/s", "--quota", "2/z", "-"], "2/z"),
        (&["replay", "--quota", "1/s"], "<LOG>"),
        (&["replay", "--quota", "1/s", "--format", "json", "-"], "auto, common, combined"),
        (&["simulate", "-"], "--quota <TEXT>"),
        (&["sample-log"], "--seed <N>"),
        (&["sample-log", "--seed", "-1"], "--seed"),
        (&["relay"], "replay"),
        (&[], "Usage: tollgate"),
    ] {
        let outcome = run(args, "");
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(outcome.stderr.contains(clue), "{args:?}: {}", outcome.stderr);
    }
}

#[test]
fn help_teaches() {
    let help = output(&["--help"], "");
    for clue in ["replay", "simulate", "sample-log", "Examples:", "Exit status: 0"] {
        assert!(help.contains(clue), "{clue}");
    }
    for command in ["replay", "simulate"] {
        let help = output(&[command, "--help"], "");
        for clue in ["LIMIT/PERIOD [burst=N] [algorithm=NAME]", "ns, us, ms, s, sec, min, h, d", "fixed-window"] {
            assert!(help.contains(clue), "{command}: {clue}");
        }
    }
    assert!(output(&["simulate", "--help"], "").contains("t_ns,key,cost"));
}
