//! Networks that fail: what stands between a client and its server and loses, holds or cuts what they say.

use std::{future::pending, net::Ipv4Addr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

/// What the proxy does at present; each byte meets the switches as they are when it is to be passed on.
#[derive(Clone, Copy, Default)]
struct Switches {
    drop_replies: bool,
    black_hole: bool,
    delay: Duration,
    /// Counts the cuts: a connection ends when the number is not the one it began with.
    cuts: u64,
}

/// A TCP proxy on a port of its own. Its switches hold for live connections as for new ones, from the moment they are
/// set. Dropping it closes all.
pub struct Proxy {
    port: u16,
    switches: watch::Sender<Switches>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy in front of a port of loopback, where nothing needs to listen yet.
    pub async fn start(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let switches = watch::Sender::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, target, switches.subscribe()));
        Self { port, switches, _tasks: tasks }
    }

    /// What clients connect to.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Swallows what the server says, while what the client says goes through: commands are done, but nobody learns of
    /// it. A connection that lost bytes is closed when this is turned off, as it would take replies for the wrong ones.
    pub fn drop_replies(&self, on: bool) {
        self.switches.send_modify(|switches| switches.drop_replies = on);
    }

    /// Passes nothing either way, not even that a side closes. As with a network that comes back, what was held
    /// arrives when this is turned off.
    pub fn black_hole(&self, on: bool) {
        self.switches.send_modify(|switches| switches.black_hole = on);
    }

    /// Closes all live connections; what a client sends on one of them after this is not passed on.
    pub fn cut(&self) {
        self.switches.send_modify(|switches| switches.cuts += 1);
    }

    /// Holds each reply back for as long, counted from its arrival, so that it doesn't add up over a pipeline.
    pub fn delay(&self, delay: Duration) {
        self.switches.send_modify(|switches| switches.delay = delay);
    }
}

/// A peer that never answers.
pub struct BlackHole {
    port: u16,
    _tasks: JoinSet<()>,
}

impl BlackHole {
    /// A peer that accepts connections and is silent: clients wait for its replies.
    pub async fn mute() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accept = async move {
            let mut peers = Vec::new();
            while let Ok(peer) = listener.accept().await {
                peers.push(peer);
            }
        };
        Self { port, _tasks: JoinSet::from_iter([accept]) }
    }

    /// A peer that doesn't accept: clients wait for the connection itself, as with a host that is gone.
    ///
    /// A listener alone won't do, as the kernel accepts for it; only when its queue is full, SYNs are ignored.
    pub async fn deaf() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(peer) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queue.push(peer.unwrap());
        }
        let keep = async move {
            let _kept = (listener, queue);
            pending::<()>().await;
        };
        Self { port: address.port(), _tasks: JoinSet::from_iter([keep]) }
    }

    /// What clients connect to.
    pub fn url(&self) -> String {
        url(self.port)
    }
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Accepts connections, also when black, and owns their tasks, so that they end with it.
async fn serve(listener: TcpListener, target: u16, switches: watch::Receiver<Switches>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let gate = Gate { cuts: switches.borrow().cuts, switches: switches.clone() };
        connections.spawn(async move {
            let (cuts, mut switches) = (gate.cuts, gate.switches.clone());
            tokio::select! {
                _ = switches.wait_for(|now| now.cuts != cuts) => {}
                () = relay(client, target, gate) => {}
            }
        });
    }
}

/// Connects a client to the server, until one of them closes.
async fn relay(client: TcpStream, target: u16, mut gate: Gate) {
    gate.pass(|_| Instant::now()).await;
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pump(from_client, to_server, gate.clone(), false) => {}
        () = pump(from_server, to_client, gate, true) => {}
    }
}

/// Passes on what one side says, until it has closed and all of it is passed on. Reading goes on while bytes are held,
/// so that each has the time of its arrival.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut gate: Gate, replies: bool) {
    let (held, mut due) = mpsc::unbounded_channel();
    let read = async move {
        let mut buffer = [0; 16 * 1024];
        loop {
            let length = from.read(&mut buffer).await.unwrap_or(0);
            let _ = held.send((Instant::now(), buffer[..length].to_vec()));
            if length == 0 {
                pending::<()>().await;
            }
        }
    };
    let write = async move {
        while let Some((arrival, bytes)) = due.recv().await {
            gate.pass(|delay| if replies { arrival + delay } else { arrival }).await;
            if replies && gate.switches.borrow().drop_replies {
                let _ = gate.switches.wait_for(|now| !now.drop_replies).await;
                return;
            }
            if bytes.is_empty() || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

/// What bytes wait at; one per connection, as it knows of the cuts before it.
#[derive(Clone)]
struct Gate {
    switches: watch::Receiver<Switches>,
    cuts: u64,
}

impl Gate {
    /// Returns when the switches let bytes through that are due at a time which depends on the delay. It never does so
    /// after a cut, which thus holds at once, even if the task that closes the connection has yet to run.
    async fn pass(&mut self, due: impl Fn(Duration) -> Instant) {
        loop {
            let now = *self.switches.borrow_and_update();
            let open = !now.black_hole && now.cuts == self.cuts;
            let due = due(now.delay);
            if open && due <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(due), if open => {}
                Ok(()) = self.switches.changed() => {}
                else => pending().await, // The proxy was dropped and will end this task.
            }
        }
    }
}
