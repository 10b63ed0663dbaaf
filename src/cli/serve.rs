//! `tollgate serve`: a server behind limits, to try them with a real client, a real proxy and a real load.

mod history;
mod options;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::extract::{ConnectInfo, State};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use http::header::{self, HeaderMap};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde::Serialize;
use tokio::net::TcpListener;
use tollgate::http::{ClientAddr, Policy, RateLimitLayer};
use tollgate::{ClientIp, Limiter, Quota, Sweeper};

use super::dry_run::parse_quotas;
use super::{QUOTA_HELP, complain};
use history::{History, Second};
pub use options::Args;

const PAGE: &str = include_str!("serve/page.html");

/// How often idle keys are swept away.
const SWEEP: Duration = Duration::from_secs(10);

/// For how long answers under way are waited for when it is to stop.
const GRACE: Duration = Duration::from_secs(10);

type Clients = Limiter<ClientIp>;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let quotas = parse_quotas(&args.quota)?;
    let limiter = Arc::new(limiter(&quotas, args.capacity)?);
    let _sweeper = Sweeper::spawn(&limiter, SWEEP)?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let server = Arc::new(Server {
        limiter,
        metrics,
        history: History::default(),
        started: Instant::now(),
        is_dry_run: args.dry_run,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args, server))
}

fn limiter(quotas: &[Quota], capacity: usize) -> anyhow::Result<Clients> {
    let [first, more @ ..] = quotas else { anyhow::bail!("there is no quota") };
    let builder = more.iter().fold(Clients::builder(*first), |builder, quota| builder.and(*quota));
    Ok(builder.capacity(capacity).build()?)
}

async fn serve(args: &Args, server: Arc<Server>) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(&args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    complain(format_args!("listening on http://{}", listener.local_addr()?));
    tokio::spawn(keep_history(Arc::clone(&server)));
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let app = router(args, server)?.into_make_service_with_connect_info::<SocketAddr>();
    let given_up = async {
        stopped().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = axum::serve(listener, app).with_graceful_shutdown(stopped()) => result?,
        () = given_up => complain(format_args!("some answers took longer than {} s", GRACE.as_secs())),
    }
    complain(format_args!("stopped"));
    Ok(())
}

fn router(args: &Args, server: Arc<Server>) -> anyhow::Result<Router> {
    let client = args.client(ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip()))?;
    let policy = Policy::new(Arc::clone(&server.limiter), client.clone());
    let layer = RateLimitLayer::builder()
        .policy(if args.dry_run { policy.dry_run() } else { policy })
        .headers(args.fields())
        .answer(args.answer())
        .access(args.access(), client)
        .exempt(|request| is_told_of_limits(request.uri.path(), &request.headers))
        .build();
    let app = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/stats.json", get(async |State(server): State<Arc<Server>>| Json(server.stats())))
        .route("/metrics", get(async |State(server): State<Arc<Server>>| server.metrics()))
        .route("/healthz", get(async || "ok\n"))
        .fallback(async || "admitted\n")
        .with_state(server);
    Ok(if args.no_limit { app } else { app.layer(layer) })
}

/// What tells how the limits stand is not limited: else nobody could look when it matters. That is so of the page for
/// browsers only, so that `/` can be tried by anything else.
fn is_told_of_limits(path: &str, headers: &HeaderMap) -> bool {
    let accepts_html = || {
        headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|it| it.contains("text/html"))
    };
    matches!(path, "/stats.json" | "/metrics" | "/healthz") || (path == "/" && accepts_html())
}

/// Completes when the process is asked to stop.
async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut terminated) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = interrupted => (),
            _ = terminated.recv() => (),
        }
        return;
    }
    let _ = interrupted.await;
}

async fn keep_history(server: Arc<Server>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        let stats = server.limiter.stats();
        server.history.note(stats.allowed, stats.refused);
        server.metrics.run_upkeep();
    }
}

struct Server {
    limiter: Arc<Clients>,
    metrics: PrometheusHandle,
    history: History,
    started: Instant,
    is_dry_run: bool,
}

/// How the limits stand, as JSON.
#[derive(Serialize)]
struct Stats {
    quotas: Vec<String>,
    dry_run: bool,
    uptime_seconds: u64,
    /// Requests; in a dry run, those that would have been.
    allowed: u64,
    refused: u64,
    /// Clients that are held, idle ones included, and for how many there is room.
    clients: usize,
    capacity: usize,
    displaced: u64,
    memory_bytes: usize,
    /// The last two minutes, the latest second last.
    seconds: Vec<Second>,
}

impl Server {
    fn stats(&self) -> Stats {
        let stats = self.limiter.stats();
        Stats {
            quotas: self.limiter.quotas().iter().map(Quota::to_string).collect(),
            dry_run: self.is_dry_run,
            uptime_seconds: self.started.elapsed().as_secs(),
            allowed: stats.allowed,
            refused: stats.refused,
            clients: self.limiter.len(),
            capacity: self.limiter.capacity(),
            displaced: stats.displaced,
            memory_bytes: self.limiter.memory_bytes(),
            seconds: self.history.seconds(),
        }
    }

    fn metrics(&self) -> impl IntoResponse + use<> {
        let stats = self.limiter.stats();
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        metrics::gauge!("tollgate_clients").set(self.limiter.len() as f64);
        metrics::counter!("tollgate_displaced_total").absolute(stats.displaced);
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], self.metrics.render())
    }
}
