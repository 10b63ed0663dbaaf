//! What answers tell clients of their limits: [`HeaderFields`].

use std::borrow::Cow;
use std::cmp::Reverse;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use sfv::{ItemSerializer, StringRef};

use crate::decision::Decision;
use crate::quota::{Algorithm, Quota};

/// What the `X-RateLimit-Reset` field counts in. The world disagrees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reset {
    /// Seconds from now on.
    #[default]
    Seconds,
    /// Seconds since the Unix epoch, by this machine's clock: as GitHub does.
    Epoch,
}

/// Which version of the IETF's draft on these fields is spoken, draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Draft {
    /// Draft 3: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, which proxies speak.
    V03,
    /// Draft 11: `RateLimit-Policy` and `RateLimit`, structured fields (RFC 9651) with an item for each quota that applies.
    #[default]
    V11,
}

/// Which fields answers carry, both those that are admitted and those that are refused.
///
/// | field | says |
/// |---|---|
/// | `Retry-After` | on refusals: when the same request is admitted, in whole seconds, rounded up, at least 1 |
/// | `X-RateLimit-Limit`, `-Remaining`, `-Reset` | of the quota that binds: the most units at once, those left, and when all are there again |
/// | `RateLimit-Policy` | of each quota its name, `q` units in `w` seconds: the most at once, and the time in which as many come back |
/// | `RateLimit` | of each quota its name, `r` units left, and `t` seconds until there are more |
///
/// All times are rounded up. On a refusal no `t` is later than `Retry-After`: until then no client can use more of any quota.
///
/// ```
/// use tollgate::http::{Draft, HeaderFields, Reset};
///
/// let like_github = HeaderFields::default().x_rate_limit(Some(Reset::Epoch)).rate_limit(None);
/// let for_proxies = HeaderFields::default().x_rate_limit(None).rate_limit(Some(Draft::V03));
/// ```
#[derive(Clone, Debug)]
#[must_use = "fields are not told unless a layer has them"]
pub struct HeaderFields {
    pub(super) retry_after: bool,
    x_rate_limit: Option<Reset>,
    rate_limit: Option<Draft>,
    pub(super) partition_key: bool,
    replaces: bool,
}

/// All but the partition key.
impl Default for HeaderFields {
    fn default() -> Self {
        Self {
            retry_after: true,
            x_rate_limit: Some(Reset::default()),
            rate_limit: Some(Draft::default()),
            partition_key: false,
            replaces: false,
        }
    }
}

impl HeaderFields {
    /// No fields at all.
    pub fn none() -> Self {
        Self { retry_after: false, x_rate_limit: None, rate_limit: None, partition_key: false, replaces: false }
    }

    /// Whether refusals carry `Retry-After`.
    pub fn retry_after(self, retry_after: bool) -> Self {
        Self { retry_after, ..self }
    }

    /// Whether, and how, answers carry the `X-RateLimit` fields.
    pub fn x_rate_limit(self, x_rate_limit: Option<Reset>) -> Self {
        Self { x_rate_limit, ..self }
    }

    /// Whether, and by which draft, answers carry the `RateLimit` fields.
    pub fn rate_limit(self, rate_limit: Option<Draft>) -> Self {
        Self { rate_limit, ..self }
    }

    /// Adds to the items of draft 11 the partition key `pk`: eight bytes that are the same for requests with the same key of
    /// a policy, and tell nothing else.
    pub fn partition_key(self, partition_key: bool) -> Self {
        Self { partition_key, ..self }
    }

    /// Replaces fields that the service behind the layer has set. Unless set, where any field of a family is there already,
    /// that family is left as it is.
    pub fn replace(self, replaces: bool) -> Self {
        Self { replaces, ..self }
    }

    /// Whether answers that are admitted carry any.
    pub(super) fn is_any(&self) -> bool {
        self.x_rate_limit.is_some() || self.rate_limit.is_some()
    }

    /// The fields that tell of `standings`. Unless one of them is known to bind, it is that of which least is left. No `t` is
    /// later than `retry_after`, in seconds.
    pub(super) fn tell(&self, standings: &[Standing<'_>], binding: Option<usize>, retry_after: Option<u64>) -> Fields {
        let mut fields = Fields { of: Vec::with_capacity(5), replaces: self.replaces };
        let tightness =
            |standing: &&Standing<'_>| (standing.decision.remaining(), Reverse(standing.decision.more_after()));
        let bound = match (binding, standings) {
            (Some(binding), _) => standings.get(binding),
            (None, [only]) => Some(only),
            (None, _) => standings.iter().min_by_key(tightness),
        };
        let Some(bound) = bound else { return fields };
        let reset = bound.decision.reset_after();
        if let Some(by) = self.x_rate_limit {
            let at = if by == Reset::Epoch {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
            } else {
                Duration::ZERO
            };
            fields.number(&X_LIMIT, bound.decision.limit());
            fields.number(&X_REMAINING, bound.decision.remaining());
            fields.number(&X_RESET, whole_seconds(at.saturating_add(reset)));
        }
        match self.rate_limit {
            None => (),
            Some(Draft::V03) => {
                fields.number(&LIMIT, bound.decision.limit());
                fields.number(&REMAINING, bound.decision.remaining());
                fields.number(&RESET, whole_seconds(reset));
            }
            Some(Draft::V11) => {
                fields.text(&POLICY, &policies(standings));
                fields.text(&RATE_LIMIT, &service_limits(standings, retry_after.unwrap_or(u64::MAX)));
            }
        }
        fields
    }
}

/// `RateLimit-Policy`: as it was when the layer was built, unless a quota has been changed.
fn policies<'a>(standings: &[Standing<'a>]) -> Cow<'a, str> {
    let item = |standing: &Standing<'a>| -> Cow<'a, str> {
        if standing.quota == standing.told.quota {
            return standing.told.policy.as_str().into();
        }
        policy(&standing.told.quoted, &standing.quota, standing.decision.limit()).into()
    };
    match standings {
        [only] if only.key.is_none() => item(only),
        _ => list(standings, |standing, text| text.push_str(&item(standing))).into(),
    }
}

/// `RateLimit`, with no time later than `latest`, in seconds.
fn service_limits(standings: &[Standing<'_>], latest: u64) -> String {
    list(standings, |standing, text| {
        let more = whole_seconds(standing.decision.more_after()).min(latest);
        text.push_str(&standing.told.quoted);
        // As an integer of a structured field is written; by the library it takes ten times as long.
        for (name, number) in [(";r=", standing.decision.remaining()), (";t=", more)] {
            text.push_str(name);
            text.push_str(itoa::Buffer::new().format(number.min(LARGEST)));
        }
    })
}

/// A structured list of such items, with their partition keys.
fn list<'a>(standings: &[Standing<'a>], item: impl Fn(&Standing<'a>, &mut String)) -> String {
    let mut text = String::with_capacity(standings.len() * USUAL_ITEM);
    for standing in standings {
        if !text.is_empty() {
            text.push_str(", ");
        }
        item(standing, &mut text);
        if let Some(key) = standing.key {
            text.push_str(";pk=");
            text.push_str(&ItemSerializer::new().bare_item(&key.to_be_bytes()[..]).finish());
        }
    }
    text
}

/// An item of `RateLimit-Policy` whose name is a String already.
fn policy(name: &str, quota: &Quota, most: u64) -> String {
    format!("{name};q={};w={}", most.min(LARGEST), window(quota, most).min(LARGEST))
}

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const LARGEST: u64 = 999_999_999_999_999;

static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
static REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
static RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Fields of which either all are told or none, known by how their names begin.
const FAMILIES: [&str; 2] = ["x-ratelimit", "ratelimit"];

/// The bytes that an item takes as a rule.
const USUAL_ITEM: usize = 48;

/// A quota as clients are told of it.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) name: String,
    /// The name as a String of a structured field.
    quoted: String,
    quota: Quota,
    /// Its item of `RateLimit-Policy`, as long as the quota is this.
    policy: String,
}

impl Told {
    /// Names are printable; so they are Strings.
    pub(super) fn new(name: String, quota: Quota) -> Self {
        let quoted = StringRef::from_str(&name).map(|name| ItemSerializer::new().bare_item(name).finish());
        let quoted = quoted.unwrap_or_default();
        let most = quota.burst() + u64::from(quota.algorithm() == Algorithm::LeakyBucket);
        let policy = policy(&quoted, &quota, most);
        Self { name, quoted, quota, policy }
    }
}

/// How one quota stands for the key of a request.
pub(super) struct Standing<'a> {
    pub(super) told: &'a Told,
    /// The quota as it is by now.
    pub(super) quota: Quota,
    pub(super) decision: Decision,
    /// What the key is called, if that is to be told.
    pub(super) key: Option<u64>,
}

/// Fields to be put on an answer.
#[derive(Debug, Default)]
pub(super) struct Fields {
    of: Vec<(HeaderName, HeaderValue)>,
    replaces: bool,
}

impl Fields {
    fn number(&mut self, name: &HeaderName, number: u64) {
        self.text(name, itoa::Buffer::new().format(number));
    }

    fn text(&mut self, name: &HeaderName, text: &str) {
        // Structured fields, as numbers, are printable ASCII. Copied, so that it is a single allocation.
        if let Ok(value) = HeaderValue::from_str(text) {
            self.of.push((name.clone(), value));
        }
    }

    /// Puts them on an answer, but for families that it has already.
    pub(super) fn put(mut self, headers: &mut HeaderMap) {
        if self.of.is_empty() {
            return;
        }
        // Not by names, each of which would have to be looked up: there are few, and next to none begin like this.
        for family in FAMILIES {
            let theirs = headers.keys().filter(|name| name.as_str().starts_with(family)).cloned().collect::<Vec<_>>();
            let is_ours = |(name, _): &(HeaderName, HeaderValue)| name.as_str().starts_with(family);
            if theirs.is_empty() || !self.of.iter().any(is_ours) {
                continue;
            }
            if self.replaces {
                for name in &theirs {
                    headers.remove(name);
                }
            } else {
                self.of.retain(|field| !is_ours(field));
            }
        }
        // And the lengths and dates that are still to come.
        headers.reserve(self.of.len() + 2);
        for (name, value) in self.of {
            headers.insert(name, value);
        }
    }
}

/// What a refusal carries beside, unless it is there already.
pub(super) fn put_refusal(headers: &mut HeaderMap, retry_after: Option<u64>) {
    if let Some(seconds) = retry_after {
        headers.entry(header::RETRY_AFTER).or_insert_with(|| HeaderValue::from(seconds));
    }
    // What one client is refused is nobody else's answer, nor its own a moment later.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Whole seconds, rounded up: coming back earlier would be too early.
pub(super) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}

/// The seconds in which as many units come back as there can be at most.
fn window(quota: &Quota, most: u64) -> u64 {
    let period = quota.period().as_nanos();
    let nanos = if quota.algorithm().takes_burst() {
        (period * u128::from(most)).div_ceil(u128::from(quota.limit().max(1)))
    } else {
        period
    };
    u64::try_from(nanos.div_ceil(1_000_000_000)).unwrap_or(u64::MAX).max(1)
}
