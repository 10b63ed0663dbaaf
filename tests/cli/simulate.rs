//! `simulate`: rows in, decisions out.

use super::{failure, output};

const HEADER: &str = "t_ns,key,cost,allowed,remaining,retry_after_ns,reset_after_ns,delay_ns\n";

/// The output for some rows, without its header.
#[track_caller]
fn rows(quota: &str, input: &str) -> String {
    let text = output(&["simulate", "--quota", quota, "-"], format!("t_ns,key,cost\n{input}"));
    text.strip_prefix(HEADER).unwrap().to_owned()
}

#[track_caller]
fn simulate_failure(input: impl Into<Vec<u8>>) -> String {
    failure(&["simulate", "--quota", "10/s", "-"], input)
}

#[test]
fn decides_row_by_row() {
    let input = "0,a,1\n0,a,1\n0,b,1\n0,a,1\n499999999,a,1\n500000000,a,1\n500000000,a,0\n500000000,b,3\n";
    let expected = "\
0,a,1,true,1,0,500000000,0
0,a,1,true,0,0,1000000000,0
0,b,1,true,1,0,500000000,0
0,a,1,false,0,500000000,1000000000,0
499999999,a,1,false,0,1,500000001,0
500000000,a,1,true,0,0,1000000000,0
500000000,a,0,true,0,0,1000000000,0
500000000,b,3,false,2,never,0,0
";
    assert_eq!(rows("2/s", input), expected);
}

#[test]
fn decides_in_the_order_of_the_rows_though_times_go_back() {
    let expected = "\
5000000000,a,1,true,0,0,1000000000,0
4000000000,a,1,false,0,2000000000,2000000000,0
6000000000,a,1,true,0,0,1000000000,0
";
    assert_eq!(rows("1/s", "5000000000,a,1\n4000000000,a,1\n6000000000,a,1\n"), expected);
}

#[test]
fn a_cost_that_can_never_be_given_takes_nothing() {
    for cost in [u64::MAX, u64::from(u32::MAX), 6] {
        let expected = format!("0,a,{cost},false,5,never,0,0\n0,a,5,true,0,0,1000000000,0\n");
        assert_eq!(rows("5/s", &format!("0,a,{cost}\n0,a,5\n")), expected);
    }
    for algorithm in ["fixed-window", "sliding-window-counter"] {
        let quota = format!("5/s algorithm={algorithm}");
        assert!(rows(&quota, "0,a,18446744073709551615\n").starts_with("0,a,18446744073709551615,false,5,never,"));
    }
}

#[test]
fn keys_come_back_as_they_went_in() {
    let input =
        "0,\"a,b\",1\n0,\"line\nbreak\",1\n0,\"say \"\"hi\"\"\",1\n0,,1\n0,\"\",1\n0, a ,1\n0,é✓,1\n0,\"a,b\",1\n";
    let expected = "\
0,\"a,b\",1,true,1,0,500000000,0
0,\"line\nbreak\",1,true,1,0,500000000,0
0,\"say \"\"hi\"\"\",1,true,1,0,500000000,0
0,,1,true,1,0,500000000,0
0,,1,true,0,0,1000000000,0
0, a ,1,true,1,0,500000000,0
0,é✓,1,true,1,0,500000000,0
0,\"a,b\",1,true,0,0,1000000000,0
";
    assert_eq!(rows("2/s", input), expected);
}

#[test]
fn a_header_alone_gives_a_header() {
    for input in ["t_ns,key,cost\n", "t_ns,key,cost", "\u{feff}t_ns,key,cost\r\n\r\n"] {
        assert_eq!(output(&["simulate", "--quota", "1/s", "-"], input), HEADER);
    }
}

#[test]
fn takes_a_file_with_any_line_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.csv");
    for text in ["t_ns,key,cost\r\n0,a,1\r\n", "t_ns,key,cost\n\n0,a,1", "\u{feff}t_ns,key,cost\n0,a,1\n\n"] {
        std::fs::write(&file, text).unwrap();
        let text = output(&["simulate", "--quota", "1/s", file.to_str().unwrap()], "");
        assert_eq!(text, format!("{HEADER}0,a,1,true,0,0,1000000000,0\n"));
    }
}

#[test]
fn has_room_for_every_key() {
    let asks: Vec<String> = (0..5000).map(|key| format!("0,k{key},1\n")).collect();
    let answers = rows("1/d", &asks.concat().repeat(2));
    let allowed: Vec<bool> = answers.lines().map(|row| row.contains(",true,")).collect();
    assert_eq!(allowed, [[true; 5000], [false; 5000]].concat());
}

#[test]
fn errors_name_the_line_and_print_nothing() {
    for (input, message) in [
        ("", "line 1: the input is empty; it must begin with the header t_ns,key,cost"),
        ("0,a,1\n", "line 1: the header must be t_ns,key,cost"),
        ("key,t_ns,cost\n", "line 1: the header must be t_ns,key,cost"),
        ("t_ns,key,cost\n0,a,1\n0,a\n", "line 3: it has 2 columns instead of 3: t_ns,key,cost"),
        ("t_ns,key,cost\n0,a,1,9\n", "line 2: it has 4 columns instead of 3: t_ns,key,cost"),
        ("t_ns,key,cost\n0,a,-1\n", "line 2: cost is not a whole number from 0 to 18446744073709551615: \"-1\""),
        (
            "t_ns,key,cost\n0,a,1\n\n1.5,a,1\n",
            "line 4: t_ns is not a whole number from 0 to 18446744073709551615: \"1.5\"",
        ),
        (
            "t_ns,key,cost\r\n0,a,1\r\nx,a,1\r\n",
            "line 3: t_ns is not a whole number from 0 to 18446744073709551615: \"x\"",
        ),
        (
            "t_ns,key,cost\n0,\"a\nb\",1\n,a,1\n",
            "line 4: t_ns is not a whole number from 0 to 18446744073709551615: \"\"",
        ),
        (
            "t_ns,key,cost\n18446744073709551616,a,1\n",
            "line 2: t_ns is not a whole number from 0 to 18446744073709551615: \"18446744073709551616\"",
        ),
        ("t_ns,key,cost\n0,\"a,1\n", "line 2: it has 2 columns instead of 3: t_ns,key,cost"),
    ] {
        assert_eq!(simulate_failure(input), format!("standard input: {message}"), "{input:?}");
    }
    let message = simulate_failure(b"t_ns,key,cost\n0,a,1\n0,\xff,1\n".as_slice());
    assert_eq!(message, "standard input: line 3: it is not UTF-8");
    let message = simulate_failure("t_ns,key,cost\n0,a,1\n18446744073709551615,a,1\n1,a,1\n");
    assert!(message.starts_with("standard input: line 3: its t_ns is 18446744073709551615 ns after the earliest: "));
}
