//! The way to Redis: one connection that all checks share, a deadline on each of them, and circuit breakers.
//!
//! A breaker is closed while all is well. The first call that fails opens it: from then on checks are decided without
//! Redis, and a task probes, at once and then every [`PAUSE`], by writing a key as checks do. The first probe that succeeds
//! closes it. A cluster has a breaker for each of [`PARTS`] equal parts of its hash slots, so that a node which is down does
//! not stand in the way of the others.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::keys::{Keys, Tag};
use super::script::{Call, Deed, Reply, Script};
use super::stats::{Counters, count};
use super::terms::Terms;

/// Between two probes.
const PAUSE: Duration = Duration::from_millis(100);

/// For how long a probe tries to connect.
pub(super) const CONNECT: Duration = Duration::from_millis(500);

const PARTS: usize = 16;

/// After so many failed probes the connections to a cluster are made anew from the addresses that were given.
const PATIENCE: u32 = 10;

/// So often a call is sent on: to a server that does not know the script yet, or that has the key now.
const MOST_TRIPS: usize = 4;

/// How things stand between a [`RedisLimiter`](super::RedisLimiter) and Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisState {
    /// Nobody has asked yet, or the first connection is being made, for which checks wait up to their deadline.
    Connecting,
    /// The circuit breaker is closed: Redis decides.
    Closed,
    /// The circuit breaker is open: checks are decided without Redis.
    Open,
    /// The same, while a probe is under way.
    HalfOpen,
}

/// Where Redis is.
pub(super) enum Server {
    Single(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Why Redis did not decide.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The breaker was open already.
    Down,
    TimedOut,
    Failed(RedisError),
}

pub(super) struct Link {
    server: Server,
    script: Script,
    keys: Keys,
    terms: Box<[Terms]>,
    deadline: Duration,
    breakers: Box<[Breaker]>,
    /// Those to a cluster, which all breakers share.
    cluster: Mutex<Option<ClusterConnection>>,
    pub(super) counters: Counters,
}

struct Breaker {
    part: usize,
    stand: watch::Sender<Stand>,
}

/// How a breaker stands.
#[derive(Clone)]
struct Stand {
    state: RedisState,
    /// There is one as long as it is closed, and may be one when it is not.
    connection: Option<Connection>,
    /// Whether a task is at it.
    is_probed: bool,
    /// How often it has been closed: who failed before that does not open it again.
    round: u64,
}

impl Link {
    pub(super) fn new(server: Server, keys: Keys, terms: Box<[Terms]>, deadline: Duration) -> Self {
        let parts = match server {
            Server::Single(_) => 1,
            Server::Cluster(_) => PARTS,
        };
        let breaker = |part| {
            let stand = Stand { state: RedisState::Connecting, connection: None, is_probed: false, round: 0 };
            Breaker { part, stand: watch::Sender::new(stand) }
        };
        Self {
            server,
            script: Script::new(),
            keys,
            terms,
            deadline,
            breakers: (0..parts).map(breaker).collect(),
            cluster: Mutex::new(None),
            counters: Counters::default(),
        }
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn terms(&self) -> &[Terms] {
        &self.terms
    }

    /// That of the breaker which stands worst.
    pub(super) fn state(&self) -> RedisState {
        let states = self.breakers.iter().map(|breaker| breaker.stand.borrow().state);
        let badness = |state: &RedisState| match state {
            RedisState::Closed => 0,
            RedisState::Connecting => 1,
            RedisState::HalfOpen => 2,
            RedisState::Open => 3,
        };
        states.max_by_key(badness).unwrap_or(RedisState::Connecting)
    }

    /// Completes when all breakers are closed.
    pub(super) async fn ready(self: &Arc<Self>) {
        for breaker in &self.breakers {
            let mut changes = breaker.stand.subscribe();
            let is_closed = |stand: &Stand| stand.state == RedisState::Closed;
            while !is_closed(&breaker.stand.borrow()) {
                // The task may end with another runtime before it has succeeded.
                self.see_to(breaker);
                // An error would be that the sender is gone, which is ours.
                let _ = changes.wait_for(|stand| is_closed(stand) || !stand.is_probed).await;
            }
        }
    }

    /// That of a check that begins now.
    pub(super) fn deadline(&self) -> Instant {
        // Unless it is longer than the clock can tell: then, some hundred years.
        let now = Instant::now();
        now.checked_add(self.deadline).unwrap_or_else(|| now + Duration::from_secs(1 << 31))
    }

    /// Has the script do something with the keys of a client, before the deadline.
    pub(super) async fn run(
        self: &Arc<Self>,
        tag: &Tag,
        deed: Deed,
        now: Option<u64>,
        costs: &[u64],
        deadline: Instant,
    ) -> Result<Reply, Trouble> {
        // There is nowhere to wait outside of tokio.
        if Handle::try_current().is_err() {
            return Err(Trouble::Down);
        }
        let breaker = &self.breakers[tag.part(self.breakers.len())];
        let mut round = breaker.stand.borrow().round;
        let keys: Vec<String> = self.keys.of(tag).collect();
        let call = Call { deed, now, costs, keys: &keys, terms: &self.terms };
        let answer = timeout_at(deadline, async {
            let stand = self.connected(breaker).await?;
            round = stand.round;
            let connection = &mut stand.connection.ok_or(Trouble::Down)?;
            self.send(connection, &call).await.map_err(Trouble::Failed)
        });
        let result = answer.await.unwrap_or(Err(Trouble::TimedOut));
        if let Err(trouble) = &result {
            self.note(breaker, trouble, round);
        }
        result
    }

    /// A breaker that is closed; waits for the first connection, and for nothing else.
    async fn connected(self: &Arc<Self>, breaker: &Breaker) -> Result<Stand, Trouble> {
        let stand = breaker.stand.borrow().clone();
        if stand.state == RedisState::Closed {
            return Ok(stand);
        }
        self.see_to(breaker);
        let mut changes = breaker.stand.subscribe();
        let connected = changes.wait_for(|stand| stand.state != RedisState::Connecting).await;
        match connected.map(|stand| stand.clone()) {
            Ok(stand) if stand.state == RedisState::Closed => Ok(stand),
            _ => Err(Trouble::Down),
        }
    }

    /// Sends a call until somebody answers it. It is sent again only where it was refused without being looked at: who is
    /// not sure whether it has counted must not count it twice.
    async fn send(&self, connection: &mut Connection, call: &Call<'_>) -> Result<Reply, RedisError> {
        let (mut by_text, mut asked) = (false, None);
        for trip in 1.. {
            count(&self.counters.round_trips);
            let error = match connection.send(self.script.command(call, by_text), asked.take()).await {
                Ok(value) => return Reply::read(value, call.terms.len()),
                Err(error) => error,
            };
            match error.kind() {
                _ if trip == MOST_TRIPS => return Err(error),
                ErrorKind::Server(ServerErrorKind::NoScript) => by_text = true,
                // The connection has learned by now where the slot is.
                ErrorKind::Server(ServerErrorKind::Moved) => (),
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    asked = error.redirect_node().map(|(address, _)| address.to_owned());
                }
                _ => return Err(error),
            }
        }
        Err((ErrorKind::Client, "nobody answers").into())
    }

    /// Counts a failure, and opens the breaker if it concerns more than one key.
    fn note(self: &Arc<Self>, breaker: &Breaker, trouble: &Trouble, round: u64) {
        match trouble {
            Trouble::Down => return,
            Trouble::TimedOut => count(&self.counters.timeouts),
            Trouble::Failed(error) => {
                count(&self.counters.errors);
                if !is_everywhere(error) {
                    tracing::debug!(target: "tollgate::redis", %error, "a check failed");
                    return;
                }
            }
        }
        let opened = breaker.stand.send_if_modified(|stand| {
            let opens = stand.round == round && matches!(stand.state, RedisState::Closed | RedisState::Connecting);
            if opens {
                stand.state = RedisState::Open;
                if matches!(trouble, Trouble::Failed(error) if error.is_unrecoverable_error()) {
                    stand.connection = None;
                }
            }
            opens
        });
        if opened {
            self.tell_opened(breaker, trouble);
            self.see_to(breaker);
        }
    }

    fn tell_opened(&self, breaker: &Breaker, trouble: &Trouble) {
        count(&self.counters.opened);
        tracing::warn!(target: "tollgate::redis", part = breaker.part, %trouble, "Redis is down: deciding without it");
    }

    /// Sees to it that a task is at a breaker that is not closed.
    fn see_to(self: &Arc<Self>, breaker: &Breaker) {
        let Ok(runtime) = Handle::try_current() else { return };
        let is_ours = breaker.stand.send_if_modified(|stand| {
            let is_needed = stand.state != RedisState::Closed && !stand.is_probed;
            stand.is_probed |= is_needed;
            is_needed
        });
        if is_ours {
            let (link, part) = (Arc::downgrade(self), breaker.part);
            runtime.spawn(Probing { link, part }.run());
        }
    }

    /// Whether the script runs and writes.
    async fn probe(&self, breaker: &Breaker) -> Result<Connection, Trouble> {
        let kept = breaker.stand.borrow().connection.clone();
        let mut connection = match kept {
            Some(connection) => connection,
            None => timeout(CONNECT, self.connect()).await.map_err(|_| Trouble::TimedOut)??,
        };
        let keys: Vec<String> = self.keys.of(&Tag::own(breaker.part, self.breakers.len())).take(1).collect();
        let call = Call { deed: Deed::Probe, now: None, costs: &[], keys: &keys, terms: &[] };
        let answer = timeout(self.deadline, self.send(&mut connection, &call)).await;
        answer.map_err(|_| Trouble::TimedOut)?.map_err(Trouble::Failed)?;
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        match &self.server {
            Server::Single(client) => {
                // The deadlines are ours.
                let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config).await;
                connection.map(Connection::Single).map_err(Trouble::Failed)
            }
            Server::Cluster(client) => {
                let mut cluster = self.cluster.lock().await;
                if cluster.is_none() {
                    *cluster = Some(client.get_async_connection().await.map_err(Trouble::Failed)?);
                }
                cluster.clone().map(Connection::Cluster).ok_or(Trouble::Down)
            }
        }
    }

    /// After a probe.
    async fn conclude(&self, breaker: &Breaker, probed: Result<Connection, Trouble>, failures: u32) {
        let trouble = match probed {
            Ok(connection) => {
                breaker.stand.send_modify(|stand| {
                    stand.state = RedisState::Closed;
                    stand.connection = Some(connection);
                    stand.round += 1;
                });
                count(&self.counters.closed);
                tracing::info!(target: "tollgate::redis", part = breaker.part, "Redis decides");
                return;
            }
            Err(trouble) => trouble,
        };
        if failures.is_multiple_of(PATIENCE) {
            *self.cluster.lock().await = None;
        }
        let is_single = matches!(self.server, Server::Single(_));
        let is_lost = |trouble: &Trouble| match trouble {
            Trouble::Failed(error) => error.is_unrecoverable_error(),
            _ => true,
        };
        let mut was_connecting = false;
        breaker.stand.send_modify(|stand| {
            was_connecting = stand.state == RedisState::Connecting;
            stand.state = RedisState::Open;
            if is_single && is_lost(&trouble) || failures.is_multiple_of(PATIENCE) {
                stand.connection = None;
            }
        });
        if was_connecting {
            self.tell_opened(breaker, &trouble);
        } else {
            tracing::debug!(target: "tollgate::redis", part = breaker.part, %trouble, "Redis is still down");
        }
    }
}

/// A task that probes until a breaker is closed, or nobody needs it any more.
struct Probing {
    link: Weak<Link>,
    part: usize,
}

impl Probing {
    async fn run(self) {
        for failures in 1.. {
            let Some(link) = self.link.upgrade() else { return };
            let breaker = &link.breakers[self.part];
            breaker.stand.send_if_modified(|stand| {
                let is_open = stand.state == RedisState::Open;
                if is_open {
                    stand.state = RedisState::HalfOpen;
                }
                is_open
            });
            let probed = link.probe(breaker).await;
            let is_closed = probed.is_ok();
            link.conclude(breaker, probed, failures).await;
            if is_closed {
                return;
            }
            drop(link);
            sleep(PAUSE).await;
        }
    }
}

/// Also if its runtime ends before it does: then the next check begins another.
impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.breakers[self.part].stand.send_modify(|stand| {
                stand.is_probed = false;
                if stand.state == RedisState::HalfOpen {
                    stand.state = RedisState::Open;
                }
            });
        }
    }
}

impl Connection {
    /// Sends a command: to the node that has its keys, or to this one, which is asked for a slot that is moving there.
    async fn send(&mut self, command: Cmd, asked: Option<String>) -> Result<Value, RedisError> {
        match (self, asked) {
            (Self::Single(connection), _) => command.query_async(connection).await,
            (Self::Cluster(connection), None) => command.query_async(connection).await,
            (Self::Cluster(connection), Some(node)) => {
                let (host, port) = node.rsplit_once(':').unwrap_or((&node, ""));
                let (host, port) = (host.to_owned(), port.parse().unwrap_or(6379));
                let mut pipeline = redis::pipe();
                pipeline.cmd("ASKING").add_command(command);
                let route = SingleNodeRoutingInfo::ByAddress { host, port };
                let answers = connection.route_pipeline(pipeline, 0, 2, route).await?;
                answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
            }
        }
    }
}

/// Whether an error says that no check can be decided, and not just this one.
fn is_everywhere(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::NoPerm
                | ServerErrorKind::ReadOnly
        ),
        ErrorKind::Extension => {
            matches!(error.code(), Some("BUSY" | "MISCONF" | "NOAUTH" | "NOREPLICAS" | "OOM" | "WRONGPASS"))
        }
        _ => error.kind() != ErrorKind::UnexpectedReturnType,
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("there is no connection"),
            Self::TimedOut => f.write_str("no answer came before the deadline"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the server's address, which may tell a password.
        f.debug_struct("Link")
            .field("keys", &self.keys)
            .field("terms", &self.terms)
            .field("deadline", &self.deadline)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
