//! Redis is killed, stopped, flushed, filled, slowed down and cut off while checks go on. Each check is answered, in time;
//! none is counted twice; and Redis decides again when it is back.

use std::time::{Duration, Instant};

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::redis::{RedisLimiter, RedisState, Source, WhenDown};
use tollgate::{Algorithm, Quota};

use crate::process::Redis;
use crate::proxy::{BlackHole, Proxy};

/// Long enough for an answer on a machine with too much to do, and short enough to be waited for.
const DEADLINE: Duration = Duration::from_millis(20);

/// Of which nothing comes back while a test runs.
fn yearly(limit: u64) -> Quota {
    Quota::with_period(limit, Duration::from_secs(365 * 86_400))
}

/// Without what is remembered, so that each check asks.
fn limiter(quota: Quota, url: &str) -> RedisLimiter {
    RedisLimiter::builder(quota).deadline(DEADLINE).remember(false).build(url).unwrap()
}

/// Waits until the limiter is in this state, and tells how long that took. Checks go on, as nothing else notices.
async fn until(limiter: &RedisLimiter, state: RedisState) -> Duration {
    let begin = Instant::now();
    while limiter.state() != state {
        assert!(begin.elapsed() < Duration::from_secs(30), "not {state:?} but {:?}", limiter.state());
        let _ = limiter.check("waiting").await;
        sleep(Duration::from_millis(1)).await;
    }
    begin.elapsed()
}

/// What checks that went on all the time saw.
#[derive(Default)]
struct Seen {
    checks: u64,
    refused: u64,
    took: Vec<Duration>,
}

/// Checks by eight tasks while something happens.
async fn under_load(limiter: &RedisLimiter, happens: impl Future<Output = ()>) -> Seen {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (limiter, stopped) = (limiter.clone(), stopped.clone());
        tasks.spawn(async move {
            let mut seen = Seen::default();
            while !*stopped.borrow() {
                let begin = Instant::now();
                let answer = limiter.check(task % 4).await;
                seen.took.push(begin.elapsed());
                seen.checks += 1;
                seen.refused += u64::from(!answer.is_allowed());
                tokio::task::yield_now().await;
            }
            seen
        });
    }
    happens.await;
    stop.send(true).unwrap();
    let each = tasks.join_all().await;
    let mut seen = Seen::default();
    for other in each {
        seen.checks += other.checks;
        seen.refused += other.refused;
        seen.took.extend(other.took);
    }
    seen.took.sort_unstable();
    seen
}

impl Seen {
    /// No check waited for longer than the deadline, and two milliseconds for the timer: but for one in a thousand, as
    /// other tests keep the machine busy.
    fn were_in_time(&self) {
        let nearly_all = self.took[self.took.len() * 999 / 1_000];
        println!("{} checks, the slowest {:?}, 99.9 % {nearly_all:?}", self.checks, self.took.last().unwrap());
        assert!(nearly_all <= DEADLINE + Duration::from_millis(2), "{nearly_all:?}");
    }

    fn were_all_admitted(&self) {
        assert_eq!(self.refused, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_is_done_without_until_it_is_back() {
    let mut redis = Redis::start();
    let limiter = limiter(yearly(1_000_000_000), &redis.url());
    limiter.ready().await;
    let mut back = Duration::ZERO;
    let seen = under_load(&limiter, async {
        sleep(Duration::from_millis(100)).await;
        redis.kill();
        until(&limiter, RedisState::Open).await;
        sleep(Duration::from_millis(300)).await;
        redis.restart();
        back = until(&limiter, RedisState::Closed).await;
        sleep(Duration::from_millis(100)).await;
    })
    .await;
    println!("it decided again after {back:?}");
    assert!(back < Duration::from_secs(1), "{back:?}");
    seen.were_in_time();
    seen.were_all_admitted();
    let stats = limiter.stats();
    assert!(stats.shared > 0 && stats.alone > 0);
    assert_eq!((stats.opened, stats.closed), (1, 2), "once in the beginning");
    assert_eq!(limiter.check("a").await.source(), Source::Redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_holds_nobody_up() {
    let redis = Redis::start();
    let limiter = limiter(yearly(1_000_000_000), &redis.url());
    limiter.ready().await;
    let mut back = Duration::ZERO;
    let seen = under_load(&limiter, async {
        sleep(Duration::from_millis(100)).await;
        redis.pause();
        sleep(Duration::from_secs(3)).await;
        assert_ne!(limiter.state(), RedisState::Closed);
        redis.resume();
        back = until(&limiter, RedisState::Closed).await;
    })
    .await;
    println!("it decided again after {back:?}");
    assert!(back < Duration::from_secs(1), "{back:?}");
    seen.were_in_time();
    seen.were_all_admitted();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_slow_for_a_while_is_done_without() {
    let redis = Redis::start();
    let limiter = limiter(yearly(1_000_000_000), &redis.url());
    limiter.ready().await;
    let seen = under_load(&limiter, async {
        let sleeper = std::thread::spawn({
            let url = redis.url();
            move || {
                let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
                redis::cmd("DEBUG").arg("SLEEP").arg("0.5").exec(&mut connection).unwrap();
            }
        });
        until(&limiter, RedisState::Open).await;
        tokio::task::spawn_blocking(|| sleeper.join().unwrap()).await.unwrap();
        let back = until(&limiter, RedisState::Closed).await;
        assert!(back < Duration::from_secs(1), "{back:?}");
    })
    .await;
    seen.were_in_time();
    seen.were_all_admitted();
    assert!(limiter.stats().timeouts > 0);
}

/// A case of the field: it still answers PING, but writes nothing.
#[tokio::test]
async fn a_server_that_is_full_is_done_without_until_it_has_room() {
    let redis = Redis::start();
    let limiter = limiter(yearly(5), &redis.url());
    assert_eq!(limiter.check("a").await.source(), Source::Redis);
    redis.command(&["CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction"]);
    let answer = limiter.check("a").await;
    assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, true));
    let trips = limiter.stats().round_trips;
    sleep(Duration::from_millis(500)).await;
    assert_ne!(limiter.state(), RedisState::Closed, "who only pings would think that it is well");
    assert!(limiter.stats().round_trips > trips, "it is probed");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    until(&limiter, RedisState::Closed).await;
    let answer = limiter.check("a").await;
    assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, 3));
}

#[tokio::test]
async fn a_server_that_has_lost_the_script_costs_a_trip() {
    let redis = Redis::start();
    for flush in [&["SCRIPT", "FLUSH"][..], &["FLUSHALL"]] {
        redis.command(&["FLUSHALL"]);
        let limiter = limiter(yearly(5), &redis.url());
        limiter.ready().await;
        assert_eq!(limiter.check("a").await.decision().remaining(), 4);
        let before = limiter.stats().round_trips;
        redis.command(flush);
        let answer = limiter.check("a").await;
        let (trips, left) = if flush.len() == 2 { (2, 3) } else { (1, 4) };
        assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, left));
        assert_eq!(limiter.stats().round_trips - before, trips);
        assert_eq!((limiter.stats().errors, limiter.state()), (0, RedisState::Closed));
    }
}

/// A case of the field: whoever sends everything again counts twice what only lost its answer.
#[tokio::test]
async fn what_lost_its_answer_is_counted_once() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let quota = yearly(100).with_algorithm(Algorithm::FixedWindow);
    let limiter = limiter(quota, &proxy.url());
    assert_eq!(limiter.check("a").await.decision().remaining(), 99);
    let count = || match redis.command(&["GET", &limiter.keys_of("a")[0]]) {
        Value::BulkString(state) => String::from_utf8(state).unwrap().split(':').nth(1).unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    proxy.drop_replies(true);
    let answer = limiter.check("a").await;
    assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, true));
    assert_eq!(count(), "2", "it was counted, though nobody was told");
    for _ in 0..100 {
        let _ = limiter.check("a").await;
    }
    assert_eq!(count(), "2", "the others did not go there");
    proxy.drop_replies(false);
    until(&limiter, RedisState::Closed).await;
    assert_eq!(limiter.check("a").await.decision().remaining(), 97);

    // So are checks whose connection is cut.
    proxy.delay(Duration::from_millis(10));
    let (answer, ()) = tokio::join!(limiter.check("a"), async {
        sleep(Duration::from_millis(3)).await;
        proxy.cut();
    });
    assert_eq!(answer.source(), Source::WhenDown);
    proxy.delay(Duration::ZERO);
    until(&limiter, RedisState::Closed).await;
    let left = limiter.check("a").await.decision().remaining();
    assert!(left == 96 || left == 95, "{left}: cut before it came there, or after");
}

/// A case of the field: no error ever comes.
#[tokio::test]
async fn a_peer_that_never_answers_costs_one_deadline() {
    for peer in [BlackHole::mute().await, BlackHole::deaf().await] {
        let limiter = limiter(yearly(5), &peer.url());
        let begin = Instant::now();
        let answer = limiter.check("a").await;
        println!("the first check took {:?}", begin.elapsed());
        assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, true));
        assert!(begin.elapsed() < DEADLINE * 4, "{:?}", begin.elapsed());
        let begin = Instant::now();
        for _ in 0..1_000 {
            assert_eq!(limiter.check("a").await.source(), Source::WhenDown);
        }
        println!("a thousand more took {:?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn a_network_that_comes_back_is_noticed() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let limiter = limiter(yearly(1_000), &proxy.url());
    limiter.ready().await;
    proxy.black_hole(true);
    until(&limiter, RedisState::Open).await;
    proxy.black_hole(false);
    let back = until(&limiter, RedisState::Closed).await;
    assert!(back < Duration::from_secs(1), "{back:?}");
    assert_eq!(limiter.check("a").await.source(), Source::Redis);

    // A connection that is only cut is made anew at once.
    let opened = limiter.stats().opened;
    proxy.cut();
    while limiter.stats().opened == opened {
        let _ = limiter.check("a").await;
    }
    let back = until(&limiter, RedisState::Closed).await;
    assert!(back < Duration::from_secs(1), "{back:?}");
    assert_eq!(limiter.check("a").await.source(), Source::Redis);
}

/// A case of the field: a server that cannot start because Redis has not.
#[tokio::test]
async fn it_is_built_while_redis_is_down() {
    let mut redis = Redis::start();
    redis.kill();
    let limiter = limiter(yearly(5), &redis.url());
    assert_eq!(limiter.state(), RedisState::Connecting);
    assert_eq!(limiter.check("a").await.source(), Source::WhenDown);
    redis.restart();
    let back = until(&limiter, RedisState::Closed).await;
    assert!(back < Duration::from_secs(1), "{back:?}");
    assert_eq!(limiter.check("a").await.decision().remaining(), 4);
}

#[tokio::test]
async fn what_decides_when_redis_is_down_is_chosen() {
    let mut redis = Redis::start();
    let build = |when_down| {
        let builder = RedisLimiter::builder(yearly(10)).and(Quota::per_hour(4)).deadline(DEADLINE);
        builder.when_down(when_down).build(&redis.url()).unwrap()
    };
    let [open, closed, local] = [WhenDown::Open, WhenDown::Closed, WhenDown::Local { servers: 2 }].map(build);
    // What says no is no reason to ask somebody else.
    for _ in 0..4 {
        assert!(local.check("a").await.is_allowed());
    }
    let refused = local.check("a").await;
    assert_eq!((refused.source(), refused.is_allowed()), (Source::Redis, false));
    redis.kill();

    for left in [3, 2, 1, 0, 0] {
        let answer = open.check_n("b", 1).await.unwrap();
        assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, true));
        assert_eq!((answer.decision().limit(), answer.each().len(), left < 4), (4, 2, true));
    }
    let answer = closed.check("b").await;
    assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, false));
    assert_eq!(answer.decision().retry_after(), Duration::from_secs(1));

    let mut admitted = 0;
    for _ in 0..10 {
        let answer = local.check("b").await;
        assert_eq!(answer.source(), Source::WhenDown);
        admitted += u32::from(answer.is_allowed());
    }
    assert_eq!(admitted, 2, "half of four");
    let refused = local.check_n("b", 4).await.unwrap();
    assert!(!refused.is_allowed() && refused.decision().retry_after() > Duration::ZERO);
    assert!(local.check_n("b", 5).await.is_err(), "as much as there never is");
    assert!(!local.refund("b", 1).await, "Redis was not told");
    assert!(local.check("b").await.is_allowed(), "but this process was");
}

/// Which the limiter survives, and does not need to be told.
#[test]
fn runtimes_come_and_go() {
    let redis = Redis::start();
    let limiter = limiter(yearly(5), &redis.url());
    for left in [4, 3, 2] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            until(&limiter, RedisState::Closed).await;
            let mut answer = limiter.check("a").await;
            if answer.source() == Source::WhenDown {
                // The connection went with the runtime before.
                until(&limiter, RedisState::Closed).await;
                answer = limiter.check("a").await;
            }
            assert_eq!((answer.source(), answer.decision().remaining()), (Source::Redis, left));
        });
    }
    // Outside of any there is nowhere to wait.
    let mut check = Box::pin(limiter.check("a"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match check.as_mut().poll(&mut context) {
        std::task::Poll::Ready(answer) => assert_eq!(answer.source(), Source::WhenDown),
        std::task::Poll::Pending => panic!("it waits for nobody"),
    }
}

/// One line and one count for each change of state, whatever many checks see of it. In a process of its own: `tracing` keeps
/// whether anybody listens for all threads together, and those of other tests, which do not, would now and then be asked first.
#[test]
fn changes_of_state_are_told_once() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["faults::changes_of_state_alone", "--exact", "--ignored"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "done by the process of another test"]
async fn changes_of_state_alone() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut redis = Redis::start();
    let limiter = limiter(yearly(1_000), &redis.url());
    limiter.ready().await;
    redis.kill();
    let checks = async || futures(&limiter).await;
    checks().await;
    until(&limiter, RedisState::Open).await;
    redis.restart();
    until(&limiter, RedisState::Closed).await;
    let text = lines.text();
    let told = |what| text.lines().filter(|line| line.contains("tollgate::redis") && line.contains(what)).count();
    assert_eq!((told("Redis decides"), told("WARN")), (2, 1), "{text}");
    let stats = limiter.stats();
    assert_eq!((stats.closed, stats.opened), (2, 1));
    assert!(!text.contains("password"));
}

/// Many at once.
async fn futures(limiter: &RedisLimiter) {
    let mut checks = JoinSet::new();
    for _ in 0..50 {
        let limiter = limiter.clone();
        checks.spawn(async move { limiter.check("a").await.is_allowed() });
    }
    assert!(checks.join_all().await.into_iter().all(|is_allowed| is_allowed));
}

#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Also if the runtime that was at it has ended meanwhile.
#[test]
fn who_waits_for_redis_learns_that_it_is_back() {
    let mut redis = Redis::start();
    redis.kill();
    let limiter = limiter(yearly(1_000), &redis.url());
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (ends, stays) = (runtime(), runtime());
    ends.block_on(async { assert_eq!(limiter.check("a").await.source(), Source::WhenDown) });
    let mut waiting = Box::pin(limiter.ready());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    stays.block_on(async { assert!(waiting.as_mut().poll(&mut context).is_pending()) });
    drop(ends);
    redis.restart();
    stays.block_on(async { tokio::time::timeout(Duration::from_secs(30), waiting).await }).unwrap();
    assert_eq!(limiter.state(), RedisState::Closed);
}

/// Who may ask is said in the address. Who may not is as good as without Redis.
#[tokio::test]
async fn passwords_are_told_by_the_address() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "gate", "on", ">p@ss", "~tollgate:*", "+@all"]);
    redis.command(&["ACL", "SETUSER", "default", "off"]);
    let with = |user: &str| redis.url().replace("redis://", &format!("redis://{user}@"));
    for url in [with("gate:p%40ss"), with("gate:p%40ss") + "?protocol=resp3"] {
        let limiter = limiter(yearly(1_000), &url);
        limiter.ready().await;
        assert_eq!(limiter.check("a").await.source(), Source::Redis);
    }
    for url in [redis.url(), with("gate:wrong"), with("nobody:p%40ss")] {
        let limiter = limiter(yearly(1_000), &url);
        let answer = limiter.check("a").await;
        assert_eq!((answer.source(), answer.is_allowed()), (Source::WhenDown, true));
        assert_ne!(limiter.state(), RedisState::Closed);
    }
}

/// What was asked for and given up.
#[tokio::test]
async fn checks_that_are_given_up_count_but_break_nothing() {
    let redis = Redis::start();
    let limiter = limiter(yearly(1_000), &redis.url());
    limiter.ready().await;
    for _ in 0..100 {
        let mut check = Box::pin(limiter.check("a"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(check.as_mut().poll(&mut context).is_pending());
    }
    let left = limiter.check("a").await.decision().remaining();
    assert!((899..=999).contains(&left), "{left}");
    assert_eq!(limiter.state(), RedisState::Closed);
}
