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
use tollgate::redis::{RedisLimiter, RedisStats};
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

/// For how long Redis is waited for in the beginning.
const CONNECT: Duration = Duration::from_secs(1);

type Clients = Limiter<ClientIp>;

/// Where it is kept what clients have used.
enum Limits {
    Here { limiter: Arc<Clients>, _sweeper: Sweeper },
    Shared(RedisLimiter),
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let limits = limits(&parse_quotas(&args.quota)?, args)?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let server = Arc::new(Server {
        limits,
        metrics,
        history: History::default(),
        started: Instant::now(),
        is_dry_run: args.dry_run,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args, server))
}

fn limits(quotas: &[Quota], args: &Args) -> anyhow::Result<Limits> {
    let [first, more @ ..] = quotas else { anyhow::bail!("there is no quota") };
    if let Some(url) = &args.redis {
        let builder = more.iter().fold(RedisLimiter::builder(*first), |builder, quota| builder.and(*quota));
        return Ok(Limits::Shared(builder.capacity(args.capacity).when_down(args.when_down()).build(url)?));
    }
    let builder = more.iter().fold(Clients::builder(*first), |builder, quota| builder.and(*quota));
    let limiter = Arc::new(builder.capacity(args.capacity).build()?);
    Ok(Limits::Here { _sweeper: Sweeper::spawn(&limiter, SWEEP)?, limiter })
}

async fn serve(args: &Args, server: Arc<Server>) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(&args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    if let Limits::Shared(limiter) = &server.limits {
        // The first request has no time to connect.
        let _ = tokio::time::timeout(CONNECT, limiter.ready()).await;
    }
    complain(format_args!("listening on http://{}", listener.local_addr()?));
    tokio::spawn(keep_history(Arc::clone(&server)));
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let app = router(args, &server)?.into_make_service_with_connect_info::<SocketAddr>();
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

fn router(args: &Args, server: &Arc<Server>) -> anyhow::Result<Router> {
    let client = args.client(ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip()))?;
    let builder = RateLimitLayer::builder()
        .headers(args.fields())
        .answer(args.answer())
        .access(args.access(), client.clone())
        .exempt(|request| is_told_of_limits(request.uri.path(), &request.headers));
    let app = Router::new()
        .route("/", get(async || Html(PAGE)))
        .route("/stats.json", get(async |State(server): State<Arc<Server>>| Json(server.stats())))
        .route("/metrics", get(async |State(server): State<Arc<Server>>| server.metrics()))
        .route("/healthz", get(async || "ok\n"))
        .fallback(async || "admitted\n")
        .with_state(Arc::clone(server));
    Ok(match &server.limits {
        _ if args.no_limit => app,
        Limits::Here { limiter, .. } => {
            let policy = Policy::new(Arc::clone(limiter), client);
            app.layer(builder.policy(if args.dry_run { policy.dry_run() } else { policy }).build())
        }
        Limits::Shared(limiter) => {
            let policy = Policy::shared::<ClientIp, _, _>(limiter.clone(), client);
            app.layer(builder.build_shared([if args.dry_run { policy.dry_run() } else { policy }]))
        }
    })
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
        let (allowed, refused) = server.limits.counts();
        server.history.note(allowed, refused);
        server.metrics.run_upkeep();
    }
}

struct Server {
    limits: Limits,
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
    #[serde(flatten)]
    here: Option<Held>,
    redis: Option<SharedStats>,
    /// The last two minutes, the latest second last.
    seconds: Vec<Second>,
}

/// What this process holds.
#[derive(Serialize)]
struct Held {
    /// Clients that are held, idle ones included, and for how many there is room.
    clients: usize,
    capacity: usize,
    displaced: u64,
    memory_bytes: usize,
}

/// How things stand with Redis.
#[derive(Serialize)]
struct SharedStats {
    state: String,
    round_trips: u64,
    /// Checks that were decided without it, by what it had refused before, or as it was slow or gone.
    remembered: u64,
    alone: u64,
}

impl Limits {
    fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Here { limiter, .. } => limiter.quotas(),
            Self::Shared(limiter) => limiter.quotas().to_vec(),
        }
    }

    /// What was allowed and refused.
    fn counts(&self) -> (u64, u64) {
        match self {
            Self::Here { limiter, .. } => {
                let stats = limiter.stats();
                (stats.allowed, stats.refused)
            }
            Self::Shared(limiter) => {
                let stats = limiter.stats();
                (stats.allowed, stats.refused)
            }
        }
    }

    fn held(&self) -> Option<Held> {
        let Self::Here { limiter, .. } = self else { return None };
        Some(Held {
            clients: limiter.len(),
            capacity: limiter.capacity(),
            displaced: limiter.stats().displaced,
            memory_bytes: limiter.memory_bytes(),
        })
    }

    fn shared(&self) -> Option<SharedStats> {
        let Self::Shared(limiter) = self else { return None };
        let RedisStats { round_trips, remembered, alone, .. } = limiter.stats();
        Some(SharedStats { state: format!("{:?}", limiter.state()), round_trips, remembered, alone })
    }
}

impl Server {
    fn stats(&self) -> Stats {
        let (allowed, refused) = self.limits.counts();
        Stats {
            quotas: self.limits.quotas().iter().map(Quota::to_string).collect(),
            dry_run: self.is_dry_run,
            uptime_seconds: self.started.elapsed().as_secs(),
            allowed,
            refused,
            here: self.limits.held(),
            redis: self.limits.shared(),
            seconds: self.history.seconds(),
        }
    }

    fn metrics(&self) -> impl IntoResponse + use<> {
        if let Some(held) = self.limits.held() {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            metrics::gauge!("tollgate_clients").set(held.clients as f64);
            metrics::counter!("tollgate_displaced_total").absolute(held.displaced);
        }
        if let Limits::Shared(limiter) = &self.limits {
            let stats = limiter.stats();
            metrics::counter!("tollgate_redis_round_trips_total").absolute(stats.round_trips);
            metrics::counter!("tollgate_redis_opened_total").absolute(stats.opened);
            metrics::counter!("tollgate_redis_alone_total").absolute(stats.alone);
        }
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], self.metrics.render())
    }
}
