//! Under load: what is admitted is what the quota allows, to one.

use std::process::Command;

use crate::process::Server;

/// Counts what was answered, and stops after 20,000.
const SCRIPT: &str = r#"
local limit, threads = 20000, {}
function setup(thread) table.insert(threads, thread) end
function init() ok, refused, other = 0, 0, 0 end
function response(status)
  if ok + refused + other == limit then return end
  if status == 200 then ok = ok + 1 elseif status == 429 then refused = refused + 1 else other = other + 1 end
  if ok + refused + other == limit then wrk.thread:stop() end
end
function done(summary)
  local thread = threads[1]
  print(string.format("counts %d %d %d", thread:get("ok"), thread:get("refused"), thread:get("other")))
end
"#;

#[tokio::test]
async fn a_load_is_admitted_to_one() {
    // So slow that nothing comes back meanwhile.
    let server = Server::start(&["--quota", "7000/3650d"]);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("count.lua");
    std::fs::write(&script, SCRIPT).unwrap();
    let output = Command::new("wrk")
        .args(["--threads", "1", "--connections", "4", "--duration", "10s", "--script"])
        .args([script.as_os_str(), format!("{}/any", server.url).as_ref()])
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let counts = output.lines().find_map(|line| line.strip_prefix("counts ")).unwrap_or_else(|| panic!("{output}"));
    let counts: Vec<u64> = counts.split(' ').map(|count| count.parse().unwrap()).collect();
    let [ok, refused, other] = counts[..] else { panic!("{output}") };
    assert_eq!((ok, other), (7_000, 0), "{output}");
    assert_eq!(ok + refused, 20_000, "{output}");

    // The server has counted the same, and the last answers to four connections, read or not.
    let stats = server.stats().await;
    assert_eq!(stats["allowed"], 7_000);
    let unread = stats["refused"].as_u64().unwrap() - refused;
    assert!(unread <= 7, "{stats}");
    let log = server.stop();
    assert!(log.ends_with("tollgate: stopped\n"), "{log}");
    assert!(!log.contains("127.0.0.1"), "{log}");
}
