//! The page in a real browser.

use std::process::Command;

use crate::process::Server;

/// What the page at a URL has become once its script has run.
fn rendered(url: &str) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=3000", "--dump-dom", url])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The text of the element with an id.
fn text<'a>(page: &'a str, id: &str) -> &'a str {
    let rest = page.split_once(&format!("id=\"{id}\">")).unwrap_or_else(|| panic!("no {id} in {page}")).1;
    rest.split_once('<').unwrap().0
}

#[tokio::test]
async fn the_page_shows_what_the_json_says() {
    for (args, refused_name) in [(&[][..], "refused"), (&["--dry-run"][..], "would be refused")] {
        let server = Server::start(&[&["--quota", "1234/365d"][..], args].concat());
        let client = reqwest::Client::new();
        for _ in 0..1_300 {
            client.get(format!("{}/any", server.url)).send().await.unwrap();
        }
        let page = rendered(&server.url);
        let stats = server.stats().await;
        assert_eq!(
            (stats["allowed"].as_u64(), stats["refused"].as_u64()),
            (Some(1_234), Some(66)),
            "the page costs nothing"
        );
        assert_eq!((text(&page, "allowed"), text(&page, "refused")), ("1,234", "66"));
        assert_eq!((text(&page, "clients"), text(&page, "displaced")), ("1", "0"));
        assert_eq!(text(&page, "refused-name"), refused_name);
        assert!(text(&page, "quotas").starts_with("Each client has 1234/365d."), "{}", text(&page, "quotas"));
        // The chart has two bars for each second.
        let bars = page.matches("<rect ").count();
        assert!(bars >= 2 && bars.is_multiple_of(2), "{bars}");
        let peak = stats["seconds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|second| second["allowed"].as_u64().unwrap() + second["refused"].as_u64().unwrap())
            .max();
        let shown: u64 = text(&page, "peak").replace(',', "").parse().unwrap();
        assert!(Some(shown) <= peak && shown > 0, "{shown} of {peak:?}");
    }
}
