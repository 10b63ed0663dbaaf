//! What limits cost a server: axum with and without the layer, under the load of `wrk` (a Debian package), in turns.
//!
//! `cargo bench --all-features --bench layer` prints the table; with `-- --write` it also puts it into `docs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss)]

// For the tables and the medians only.
mod support;

use std::net::SocketAddr;
use std::process::Command;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;
use tollgate::http::{ClientAddr, HeaderFields, Policy, RateLimitLayer};
use tollgate::{ClientIp, Limiter, Quota};

use support::Call;
use support::measure::median;
use support::report::{Report, Table, grouped};

const HELLO: &str = "hello";

/// What is served: next to nothing, or a page.
#[derive(Clone, Copy)]
struct Served {
    name: &'static str,
    length: usize,
}

const SERVED: [Served; 2] = [Served { name: "5 bytes", length: 5 }, Served { name: "64 KB", length: 65_536 }];

/// In front of what it is served.
#[derive(Clone, Copy)]
enum Front {
    Nothing,
    /// Fields like those of the layer, but always the same: what they cost by themselves.
    Fields,
    Silent,
    Layer,
}

const FRONTS: [(Front, &str); 4] = [
    (Front::Nothing, "without"),
    (Front::Fields, "the same five fields, constant"),
    (Front::Silent, "the layer, without fields"),
    (Front::Layer, "the layer"),
];

const CONSTANT: [(&str, &str); 5] = [
    ("x-ratelimit-limit", "1000000000"),
    ("x-ratelimit-remaining", "999999999"),
    ("x-ratelimit-reset", "1"),
    ("ratelimit-policy", "\"default\";q=1000000000;w=1"),
    ("ratelimit", "\"default\";r=999999999;t=1"),
];

async fn with_constant_fields(mut response: Response) -> Response {
    for (name, value) in CONSTANT {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

fn router(served: Served, front: Front) -> Router {
    let text = HELLO.repeat(served.length / HELLO.len());
    let app = Router::new().route("/", get(move || std::future::ready(text.clone())));
    let client = ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip());
    let limiter = Limiter::<ClientIp>::builder(Quota::per_second(1_000_000_000)).build().unwrap();
    let fields = if matches!(front, Front::Silent) { HeaderFields::none() } else { HeaderFields::default() };
    match front {
        Front::Nothing => app,
        Front::Fields => app.layer(axum::middleware::map_response(with_constant_fields)),
        Front::Silent | Front::Layer => {
            app.layer(RateLimitLayer::builder().policy(Policy::new(limiter, client)).headers(fields).build())
        }
    }
}

/// Serves for as long as the process lives, and tells where.
async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    format!("http://{address}/")
}

/// Requests a second.
fn load(url: &str, seconds: u64) -> f64 {
    let duration = format!("{seconds}s");
    let output =
        Command::new("wrk").args(["--threads", "1", "--connections", "8", "--duration", &duration, url]).output();
    let text = String::from_utf8(output.unwrap_or_else(|error| panic!("wrk: {error}")).stdout).unwrap();
    let rate = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    assert!(!text.contains("Non-2xx"), "{text}");
    rate.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
}

fn main() {
    let call = Call::read();
    let (rounds, seconds) = if call.test { (1, 1) } else { (15, 2) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut table = Table::new(["an answer of", "", "requests a second", "share of those without"]);
    for served in SERVED {
        let urls = FRONTS.map(|(front, _)| runtime.block_on(serve(router(served, front))));
        let rates: Vec<[f64; 4]> = (0..rounds).map(|_| urls.each_ref().map(|url| load(url, seconds))).collect();
        for (index, (_, name)) in FRONTS.iter().enumerate() {
            let rate = median(rates.iter().map(|round| round[index]).collect());
            // Each by that of its own round.
            let share = median(rates.iter().map(|round| round[index] / round[0]).collect());
            #[expect(clippy::cast_sign_loss, reason = "a rate is none")]
            table.row([
                served.name.to_owned(),
                (*name).to_owned(),
                grouped(rate as u64),
                format!("{:.0} %", 100.0 * share),
            ]);
        }
    }
    Report::new("layer", "performance.md", call.write && !call.test).put("layer", &table);
}
