//! What `tollgate serve` can be told.

use anyhow::Context;
use clap::ValueEnum;
use ipnet::IpNet;
use tollgate::AccessList;
use tollgate::http::{Answer, ClientAddr, ClientHeader, Draft, HeaderFields, Reset};
use tollgate::redis::WhenDown;

use super::QUOTA_HELP;

/// Serve a page behind limits, to try them with a real client, proxy and load
///
/// Everything is limited by client address but for what tells how the limits stand: /stats.json, /metrics (for Prometheus),
/// /healthz, and the page at / when a browser asks for it. Stops by SIGTERM or Ctrl-C when all answers are given.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A quota of each client, such as 10/min; given more than once, all of them together
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required = true, long_help = QUOTA_HELP)]
    pub quota: Vec<String>,

    /// Where to listen; port 0 for any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: String,

    /// For how many clients there is room; 24 bytes each, for each quota
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub capacity: usize,

    /// Share the limits with other servers through this Redis server: redis://[user:password@]host[:port][/db], or rediss:// with TLS
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,

    /// What decides when Redis is slow or gone
    #[arg(long, value_enum, default_value_t, requires = "redis")]
    redis_down: RedisDown,

    /// Among how many servers --redis-down=local shares out the quotas
    #[arg(long, value_name = "N", default_value_t = 1, requires = "redis")]
    redis_servers: u32,

    /// A network of proxies that are trusted to say whom they forward for; may be given more than once
    #[arg(long, value_name = "NETWORK", conflicts_with = "trust_hops")]
    trust: Vec<IpNet>,

    /// How many proxies are trusted, whatever their addresses
    #[arg(long, value_name = "N")]
    trust_hops: Option<usize>,

    /// The header in which they say so: x-forwarded-for, forwarded, or another with one address
    #[arg(long, value_name = "NAME", default_value = "x-forwarded-for")]
    client_header: String,

    /// A network that is let in without limits; may be given more than once
    #[arg(long, value_name = "NETWORK")]
    exempt: Vec<IpNet>,

    /// A network that is shut out; may be given more than once
    #[arg(long, value_name = "NETWORK")]
    deny: Vec<IpNet>,

    /// Which fields answers carry
    #[arg(long, value_enum, value_delimiter = ',', default_value = "retry-after,x-ratelimit,ratelimit")]
    headers: Vec<Family>,

    /// What X-RateLimit-Reset counts
    #[arg(long, value_enum, default_value_t)]
    reset: ResetBy,

    /// How refusals are put
    #[arg(long, value_enum, default_value_t)]
    answer: AnswerAs,

    /// Refuse nothing, but tell and count what would have been
    #[arg(long)]
    pub dry_run: bool,

    /// No limits at all: to compare with
    #[arg(long, hide = true)]
    pub no_limit: bool,
}

/// A family of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Family {
    /// Retry-After, on refusals
    RetryAfter,
    /// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset
    #[value(name = "x-ratelimit")]
    XRateLimit,
    #[value(name = "ratelimit", help = "RateLimit-Policy and RateLimit, by draft 11 of the IETF")]
    RateLimit,
    /// RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, by draft 3
    #[value(name = "ratelimit-03")]
    RateLimit03,
    /// None of them
    None,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RedisDown {
    /// Everything is admitted
    #[default]
    Open,
    /// Everything is refused
    Closed,
    /// This server decides by its share of the quotas
    Local,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ResetBy {
    /// Seconds from now on
    #[default]
    Seconds,
    /// Seconds since the Unix epoch
    Epoch,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum AnswerAs {
    /// As application/problem+json
    #[default]
    Problem,
    /// As a line of text
    Text,
}

impl Args {
    /// Whose address counts, from the address of the peer.
    pub fn client(&self, peer: ClientAddr) -> anyhow::Result<ClientAddr> {
        let header = match self.client_header.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => ClientHeader::XForwardedFor,
            "forwarded" => ClientHeader::Forwarded,
            name => {
                let name = name.parse().with_context(|| format!("{name:?} is no name of a header"))?;
                ClientHeader::Single(name)
            }
        };
        Ok(match self.trust_hops {
            Some(hops) => peer.behind_hops(hops),
            None => peer.behind(self.trust.iter().copied()),
        }
        .header(header))
    }

    /// What decides when Redis does not.
    pub fn when_down(&self) -> WhenDown {
        match self.redis_down {
            RedisDown::Open => WhenDown::Open,
            RedisDown::Closed => WhenDown::Closed,
            RedisDown::Local => WhenDown::Local { servers: self.redis_servers },
        }
    }

    /// Who is let in or shut out.
    pub fn access(&self) -> AccessList {
        let allowed = self.exempt.iter().copied().fold(AccessList::new(), AccessList::allow);
        self.deny.iter().copied().fold(allowed, AccessList::deny)
    }

    /// What answers carry.
    pub fn fields(&self) -> HeaderFields {
        let has = |family| self.headers.contains(&family);
        let reset = match self.reset {
            ResetBy::Seconds => Reset::Seconds,
            ResetBy::Epoch => Reset::Epoch,
        };
        let draft = if has(Family::RateLimit03) { Some(Draft::V03) } else { None };
        HeaderFields::none()
            .retry_after(has(Family::RetryAfter))
            .x_rate_limit(has(Family::XRateLimit).then_some(reset))
            .rate_limit(if has(Family::RateLimit) { Some(Draft::V11) } else { draft })
    }

    /// How refusals are put.
    pub fn answer(&self) -> Answer {
        match self.answer {
            AnswerAs::Problem => Answer::Problem,
            AnswerAs::Text => Answer::Text,
        }
    }
}
