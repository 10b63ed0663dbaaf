//! What is told of a refusal, and to whom: [`Refusal`], [`Answer`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde::Serialize;

use super::fields::whole_seconds;
use crate::decision::Decision;

/// A request that was refused, or would have been in a dry run.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub(super) policy: &'a str,
    pub(super) violated: Vec<&'a str>,
    pub(super) decision: Decision,
    pub(super) key: u64,
    pub(super) is_never: bool,
    pub(super) is_dry_run: bool,
}

impl Refusal<'_> {
    /// The name of the quota that refused; of several, of the one with the longest wait.
    #[must_use]
    pub fn policy(&self) -> &str {
        self.policy
    }

    /// The names of all quotas that had not enough left.
    #[must_use]
    pub fn violated(&self) -> &[&str] {
        &self.violated
    }

    /// The decision of the quota that refused; if the request costs more than that can [ever](Self::is_never) give, how it
    /// stands.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the key is called: a hash of it by a secret of this process.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Whether it costs more than a quota can ever give at once, so that no wait helps.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.is_never
    }

    /// Whether it was let pass, as the policy is on trial.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// The whole seconds after which the same request is admitted, if nobody else takes the room: rounded up, at least 1.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_seconds().map(Duration::from_secs)
    }

    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        (!self.is_never).then(|| whole_seconds(self.decision.retry_after()).max(1))
    }
}

type Custom = dyn Fn(&Refusal<'_>, &Parts) -> Response<Bytes> + Send + Sync;

/// How a refusal is put.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Answer {
    /// As `application/problem+json` (RFC 9457), of the type `quota-exceeded` with `violated-policies` (draft 11, section 5);
    /// for a key that is blocked, of the type `abnormal-usage-detected`.
    #[default]
    Problem,
    /// As a line of text.
    Text,
    /// As a response of the user's own. `Retry-After`, `Cache-Control` and the fields of the limits are added unless they are
    /// there.
    Custom(Arc<Custom>),
}

impl Answer {
    /// A response of the user's own, made from the refusal and the head of the request.
    pub fn custom(answer: impl Fn(&Refusal<'_>, &Parts) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(answer))
    }

    pub(super) fn to(&self, refusal: &Refusal<'_>, request: &Parts) -> Response<Bytes> {
        let (kind, text) = match self {
            Self::Custom(answer) => return answer(refusal, request),
            Self::Problem => ("application/problem+json", problem(refusal)),
            Self::Text => ("text/plain; charset=utf-8", (text(refusal) + "\n").into()),
        };
        plain(StatusCode::TOO_MANY_REQUESTS, kind, text, &request.method)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Problem => "Problem",
            Self::Text => "Text",
            Self::Custom(_) => "Custom",
        })
    }
}

/// A response with a text, or only its head to those who have asked for the head.
pub(super) fn plain(status: StatusCode, kind: &'static str, text: Bytes, method: &Method) -> Response<Bytes> {
    let length = HeaderValue::from(text.len());
    let mut response = Response::new(if *method == Method::HEAD { Bytes::new() } else { text });
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CONTENT_LENGTH, length);
    response
}

/// RFC 9457, section 3.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: &'a [&'a str],
}

fn problem(refusal: &Refusal<'_>) -> Bytes {
    let (r#type, title) = if refusal.decision.is_blocked() {
        (
            "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            "Request not satisfied due to detection of abnormal request pattern",
        )
    } else {
        (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        )
    };
    let problem = Problem { r#type, title, status: 429, detail: text(refusal), violated_policies: refusal.violated() };
    serde_json::to_vec(&problem).unwrap_or_default().into()
}

fn text(refusal: &Refusal<'_>) -> String {
    match refusal.retry_after_seconds() {
        Some(1) => "Too many requests. Try again in 1 second.".to_owned(),
        Some(seconds) => format!("Too many requests. Try again in {seconds} seconds."),
        None => "This request costs more than its quota can ever give.".to_owned(),
    }
}
