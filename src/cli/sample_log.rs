//! `tollgate sample-log`: a made-up day of a video site, the same for the same seed on every machine.
//!
//! All of it is whole-number arithmetic on a `ChaCha` stream, so that nothing depends on how a machine rounds, and it is
//! written as it is made, so that a log may be as long as one likes.

use std::io::{self, BufWriter, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::STDOUT;

/// Make up an access log of one day, to try things on
///
/// A video site by day and night, with crawlers and a long tail of visitors; from 20:00 UTC a few scrapers hammer
/// /trending. Addresses are those set aside for documentation and benchmarks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to make it from: the same seed gives the same log
    #[arg(long, value_name = "N")]
    seed: u64,

    /// How many lines to write
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    lines: u64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut day = Day::new(args);
    day.write(&mut out).and_then(|()| out.flush()).context(STDOUT)
}

const DATE: &str = "21/Jun/2026";

const SECONDS_A_DAY: u64 = 86_400;

/// How busy each hour is.
const HOURLY: [u64; 24] =
    [44, 30, 20, 14, 10, 11, 16, 26, 38, 46, 50, 54, 58, 56, 52, 50, 54, 62, 74, 88, 100, 98, 82, 62];

/// When the scrapers come, in seconds of the day, and how long they stay.
const SCRAPE_START: u64 = 20 * 3600;
const SCRAPE_SECONDS: u64 = 900;

/// One line in so many is a scraper's.
const SCRAPE_SHARE: u64 = 8;

/// One line in so many cannot be read.
const GARBAGE_SHARE: u64 = 4000;

/// How many visitors are in the middle of something and likely to send the next request as well.
const ACTIVE_VISITORS: usize = 24;

const CRAWLERS: [(Ipv4Addr, &str); 4] = [
    (Ipv4Addr::new(192, 0, 2, 17), "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"),
    (Ipv4Addr::new(192, 0, 2, 18), "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"),
    (Ipv4Addr::new(192, 0, 2, 80), "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)"),
    (Ipv4Addr::new(192, 0, 2, 200), "ExampleBot/0.9 (\\\"all your videos\\\"; +http://bot.example/)"),
];

const SCRAPER_AGENTS: [&str; 3] = ["python-requests/2.32.4", "Go-http-client/2.0", "curl/8.14.1"];

const BROWSERS: [&str; 5] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Firefox/140.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/138.0 Safari/537.36",
    "Mozilla/5.0 (Linux; Android 10; K) Chrome/138.0 Mobile Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5) Version/18.5 Mobile/15E148",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Version/18.5 Safari/605.1.15",
];

const WORDS: [&str; 6] = ["cats", "news", "how+to", "live", "piano", "caf%C3%A9"];

/// The state from which the next line is made.
struct Day {
    random: ChaCha8Rng,
    lines: u64,
    /// The visitors of the day are numbered below two to the power of this.
    visitor_bits: u32,
    active: [u64; ACTIVE_VISITORS],
}

/// What a client asked for, and what it was given.
struct Hit {
    client: String,
    request: String,
    status: u16,
    size: u64,
    referrer: &'static str,
    agent: &'static str,
}

impl Day {
    fn new(args: &Args) -> Self {
        let visitor_bits = args.lines.checked_ilog2().unwrap_or(0).saturating_sub(3).max(4);
        let random = ChaCha8Rng::seed_from_u64(args.seed);
        Self { random, lines: args.lines, visitor_bits, active: [0; ACTIVE_VISITORS] }
    }

    fn write(&mut self, out: &mut impl Write) -> io::Result<()> {
        let scrapes = self.lines / SCRAPE_SHARE;
        let visits = self.lines - scrapes;
        let busy_day = busyness(SECONDS_A_DAY);
        for second in 0..SECONDS_A_DAY {
            let mut visits_due = due(visits, busyness(second), busyness(second + 1), busy_day);
            let before = second.saturating_sub(SCRAPE_START).min(SCRAPE_SECONDS);
            let after = (second + 1).saturating_sub(SCRAPE_START).min(SCRAPE_SECONDS);
            let mut scrapes_due = due(scrapes, before, after, SCRAPE_SECONDS);
            while visits_due + scrapes_due > 0 {
                let is_scrape = self.below(visits_due + scrapes_due) < scrapes_due;
                let left = if is_scrape { &mut scrapes_due } else { &mut visits_due };
                *left -= 1;
                self.write_line(out, second, is_scrape)?;
            }
        }
        Ok(())
    }

    fn write_line(&mut self, out: &mut impl Write, second: u64, is_scrape: bool) -> io::Result<()> {
        let time = self.start_of_request(second);
        let hit = match is_scrape {
            true => self.scrape(),
            false if self.below(100) < 6 => self.crawl(),
            false => self.visit(second),
        };
        let Hit { client, request, status, size, referrer, agent } = hit;
        if self.below(GARBAGE_SHARE) == 0 {
            return self.write_garbage(out, &client, &time);
        }
        writeln!(out, "{client} - - [{time}] \"{request}\" {status} {size} \"{referrer}\" \"{agent}\"")
    }

    /// A line that no reader should take for a request: cut off, of another kind, or of a day that never was.
    fn write_garbage(&mut self, out: &mut impl Write, client: &str, time: &str) -> io::Result<()> {
        match self.below(3) {
            0 => writeln!(out, "{client} - - [{time}] \"GET /vid"),
            1 => writeln!(out, "server reached MaxRequestWorkers setting, consider raising it"),
            _ => writeln!(out, "{client} - - [31/Feb/2026:25:00:00 +0000] \"GET / HTTP/1.1\" 200 512 \"-\" \"-\""),
        }
    }

    /// When a request began that ended in this second: that is the time a server writes, so logs are a little out of
    /// order.
    fn start_of_request(&mut self, second: u64) -> String {
        let lasted = if self.below(12) == 0 { 1 + self.below(4) } else { 0 };
        let start = second.saturating_sub(lasted);
        format!("{DATE}:{:02}:{:02}:{:02} +0000", start / 3600, start / 60 % 60, start % 60)
    }

    /// Four scrapers with an address each, and one that has a /64 to itself and never uses an address twice.
    fn scrape(&mut self) -> Hit {
        let scraper = self.below(6);
        let client = match u8::try_from(scraper) {
            Ok(last @ 0..4) => Ipv4Addr::new(203, 0, 113, 60 + last).to_string(),
            _ => Ipv6Addr::from_bits((0x2001_0db8_0bad_cafe << 64) | u128::from(self.random.next_u64())).to_string(),
        };
        let request = format!("GET /trending?page={} HTTP/1.1", 1 + self.below(50));
        let agent = SCRAPER_AGENTS[usize_from(scraper) % SCRAPER_AGENTS.len()];
        Hit { client, request, status: 200, size: 18_000 + self.below(4000), referrer: "-", agent }
    }

    fn crawl(&mut self) -> Hit {
        let (client, agent) = self.pick(&CRAWLERS);
        let request = if self.below(20) == 0 {
            "GET /robots.txt HTTP/1.1".to_owned()
        } else {
            format!("GET /video/{} HTTP/1.1", self.below(1 << 14))
        };
        let status = if self.below(25) == 0 { 404 } else { 200 };
        Hit { client: client.to_string(), request, status, size: 9_000 + self.below(9000), referrer: "-", agent }
    }

    fn visit(&mut self, second: u64) -> Hit {
        let visitor = self.next_visitor();
        let traits = mix(visitor);
        let (path, size) = self.page();
        let method = if path == "/api/like" { "POST" } else { "GET" };
        let (status, size) = if self.below(16) == 0 { (304, 0) } else { (200, size) };
        Hit {
            client: address(visitor, traits, second),
            request: format!("{method} {path} HTTP/2.0"),
            status,
            size,
            referrer: if self.below(3) == 0 { "-" } else { "https://video.example/" },
            agent: BROWSERS[usize_from(traits >> 32) % BROWSERS.len()],
        }
    }

    /// Mostly somebody who has just been here; else anybody, where low numbers come far more often than high ones.
    fn next_visitor(&mut self) -> u64 {
        let slot = usize_from(self.below(ACTIVE_VISITORS as u64));
        if self.below(4) == 0 {
            self.active[slot] = self.heavy_tailed(self.visitor_bits);
        }
        self.active[slot]
    }

    fn page(&mut self) -> (String, u64) {
        match self.below(100) {
            0..30 => (format!("/thumbs/{}.jpg", self.heavy_tailed(14)), 12_000 + self.below(30_000)),
            30..60 => (format!("/video/{}", self.heavy_tailed(14)), 9_000 + self.below(9_000)),
            60..72 => (format!("/api/next?after={}", self.heavy_tailed(14)), 700 + self.below(900)),
            72..82 => ("/".to_owned(), 15_000 + self.below(2_000)),
            82..90 => ("/trending".to_owned(), 18_000 + self.below(4_000)),
            90..96 => (format!("/search?q={}", self.pick(&WORDS)), 6_000 + self.below(9_000)),
            _ => ("/api/like".to_owned(), 17),
        }
    }

    /// A number below 2^bits whose probability falls as one over it: each power of two is as likely as the next.
    fn heavy_tailed(&mut self, bits: u32) -> u64 {
        // The first few share one step, so that no single one takes a tenth of everything.
        const FIRST: u32 = 3;
        match FIRST + u32::try_from(self.below(u64::from(bits.saturating_sub(FIRST)) + 1)).unwrap_or(0) {
            FIRST => self.below(1 << FIRST),
            step => (1 << (step - 1)) + self.below(1 << (step - 1)),
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize_from(self.below(from.len() as u64))]
    }

    /// A number below `bound`; zero if that is zero.
    fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.random.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }
}

/// How much of the day's business is done before this second.
fn busyness(second: u64) -> u64 {
    let whole_hours: u64 = HOURLY.iter().take(usize_from(second / 3600)).sum();
    let this_hour = HOURLY.get(usize_from(second / 3600)).copied().unwrap_or(0);
    whole_hours * 3600 + this_hour * (second % 3600)
}

/// How many of `total` fall between `from` and `to` of `whole`. Over consecutive parts they add up to the total.
fn due(total: u64, from: u64, to: u64, whole: u64) -> u64 {
    let until = |part: u64| u64::try_from(u128::from(total) * u128::from(part) / u128::from(whole)).unwrap_or(total);
    until(to) - until(from)
}

/// A visitor's address: one in six has an IPv6 network, and another address in it every few hours.
fn address(visitor: u64, traits: u64, second: u64) -> String {
    if traits.is_multiple_of(6) {
        let network = 0x2001_0db8_0000_0000 | u128::from(visitor.wrapping_mul(0x9E37_79B1) & 0xFFFF_FFFF);
        let interface = mix(traits ^ (second / 10_000));
        return Ipv6Addr::from_bits((network << 64) | u128::from(interface)).to_string();
    }
    // An odd factor maps the 2^17 addresses of 198.18.0.0/15 one to one.
    let host = u32::try_from(visitor.wrapping_mul(40_503) & 0x1_FFFF).unwrap_or(0);
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() | host).to_string()
}

/// A number that looks like any other, but is always the same for the same number (the last step of `SplitMix64`).
const fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Only for numbers that were just made small; a larger one would wrap on machines of 32 bits.
#[allow(clippy::cast_possible_truncation)]
const fn usize_from(number: u64) -> usize {
    number as usize
}
