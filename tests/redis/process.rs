//! Real Redis servers, one or three per test, so that tests can fill, stop and kill them without regard to each other.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue, RedisResult, Value};
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// How long anything may take that is sure to happen: long, as a slow machine is no reason to fail a test.
const PATIENCE: Duration = Duration::from_secs(30);

/// What all servers have in common: out of reach from outside, gone without a trace, open to `DEBUG`.
const COMMON: [&str; 8] = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"];

/// Polls, since none of what the tests wait for gives notice of itself.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A server of the test's own, on loopback and without persistence, which dies with this value.
pub struct Redis {
    child: Child,
    watchdog: Child,
    port: u16,
    /// Holds the log, and in a cluster `nodes.conf`.
    dir: TempDir,
    args: Vec<String>,
    _ports: [TcpSocket; 2],
}

impl Redis {
    /// Starts a server and returns when it answers.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, e.g. `["--maxmemory", "1mb"]`, for those who test more than the defaults.
    pub fn start_with(extra: &[&str]) -> Self {
        let ports = reserve();
        let port = ports[0].local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let (number, path) = (port.to_string(), dir.path().to_str().unwrap());
        let own = ["--port", &number, "--dir", path];
        let args: Vec<_> = [&own, &COMMON[..], extra].concat().into_iter().map(str::to_owned).collect();
        let (child, watchdog) = launch(&args, &dir);
        let mut redis = Self { child, watchdog, port, dir, args, _ports: ports };
        redis.wait();
        redis
    }

    /// The port, which stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, for tests that want to look at it from outside.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What clients connect to.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends the server as a crash does: at once, all data lost, its connections closed. It may be paused or dead already.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        // The watchdog goes before the server is reaped, as its pid may be another process's after that.
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
        let _ = self.child.wait();
    }

    /// Brings the server back at the same port with the same arguments, but empty; kills it first if it is alive.
    pub fn restart(&mut self) {
        self.kill();
        (self.child, self.watchdog) = launch(&self.args, &self.dir);
        self.wait();
    }

    /// Makes the server hang: the kernel still accepts connections and bytes for it, but nothing is answered.
    pub fn pause(&self) {
        self.signal("STOP");
        eventually("the server stops", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            stat.rsplit(')').next().unwrap().starts_with(" T")
        });
    }

    /// Ends a pause; the server then does all that it was sent in the meantime.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Runs a command, past the limiter and past any proxy, and panics if it fails.
    pub fn command(&self, args: &[&str]) -> Value {
        self.query(args)
    }

    /// How often a command was called since the server started, also by scripts and also if it failed.
    pub fn calls(&self, name: &str) -> u64 {
        let stats: String = self.query(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{}:calls=", name.to_lowercase());
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// Every key with the milliseconds it has left, -1 for one that never expires; sorted, so that tests can compare.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let mut connection = self.connect().unwrap();
        let mut keys = BTreeMap::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            let (next, batch): (_, Vec<Vec<u8>>) =
                scan.arg(cursor).arg("COUNT").arg(1000).query(&mut connection).unwrap();
            for key in batch {
                let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
                keys.insert(String::from_utf8_lossy(&key).into_owned(), ttl);
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        // -2 means that the key has expired since SCAN saw it.
        keys.into_iter().filter(|&(_, ttl)| ttl != -2).collect()
    }

    /// Connects with timeouts, so that a paused server fails a test rather than hangs it.
    fn connect(&self) -> RedisResult<Connection> {
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn query<T: FromRedisValue>(&self, args: &[&str]) -> T {
        let reply = self.connect().and_then(|mut connection| redis::Cmd::new().arg(args).query(&mut connection));
        reply.unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// Waits for PONG, which a server of this port says only when it can take commands.
    fn wait(&mut self) {
        eventually("the server answers", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{status}: {}", fs::read_to_string(self.dir.path().join("log")).unwrap());
            }
            self.connect().is_ok_and(|mut connection| redis::cmd("PING").exec(&mut connection).is_ok())
        });
    }

    /// Sends a signal by the shell's own `kill`, as std has none and `/bin/kill` is not on every machine.
    fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.pid());
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server, and a watchdog that kills it and removes its directory if the test process ends without dropping it
/// (`exit`, abort, SIGKILL, a `static`): however that comes, it closes the pipe that the watchdog reads from.
fn launch(args: &[String], dir: &TempDir) -> (Child, Child) {
    let log = File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
    let mut server = Command::new("redis-server");
    server.args(args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let server = server.spawn().expect("redis-server is needed in PATH");
    let mut watchdog = Command::new("sh");
    watchdog.args(["-c", r#"read _; kill -KILL "$0"; rm -rf "$1""#, &server.id().to_string()]).arg(dir.path());
    // In a group of its own it survives what the test's group is sent, e.g. by Ctrl-C.
    watchdog.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    (server, watchdog.spawn().unwrap())
}

/// Takes a free port, and the one that a cluster's bus is to have, 10000 above it.
///
/// They stay bound for as long as the server is in use, so that nobody else is given them, also not while it is dead.
/// The server can have them nevertheless, as both sides set `SO_REUSEADDR` and these sockets don't listen. They set it
/// only once bound, since before it would let them share a port with each other.
fn reserve() -> [TcpSocket; 2] {
    let bind = |port: u16| -> io::Result<TcpSocket> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        socket.set_reuseaddr(true)?;
        Ok(socket)
    };
    let pair = || -> Option<[TcpSocket; 2]> {
        let port = bind(0).ok()?;
        let bus = bind(port.local_addr().ok()?.port().checked_add(10_000)?).ok()?;
        Some([port, bus])
    };
    (0..1000).find_map(|_| pair()).expect("no free ports")
}

/// Three masters that share the slots evenly, without replicas.
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts and joins the nodes and returns when they serve all slots, which takes Redis at least two seconds.
    pub fn start() -> Self {
        let args = ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"];
        let nodes: Vec<_> = (0..3).map(|_| Redis::start_with(&args)).collect();
        for (index, slots) in [["0", "5460"], ["5461", "10922"], ["10923", "16383"]].iter().enumerate() {
            nodes[index].command(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
            nodes[index].command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            for other in &nodes[..index] {
                nodes[index].command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        let cluster = Self { nodes };
        cluster.wait();
        cluster
    }

    /// Waits until all nodes know each other and find the cluster sound; also needed after the restart of one.
    pub fn wait(&self) {
        let sound = ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3"];
        for node in &self.nodes {
            eventually("the cluster is sound", || {
                let info: String = node.query(&["CLUSTER", "INFO"]);
                sound.iter().all(|line| info.lines().any(|found| found == *line))
            });
        }
    }

    /// What clients connect to; any of them would do.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The nodes, in the order of their slots.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes, for tests that kill or restart some.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }
}
