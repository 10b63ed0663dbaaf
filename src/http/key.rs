//! By what requests are counted: [`Extract`], [`KeyBy`], [`Key`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use ahash::RandomState;
use cookie::Cookie;
use http::request::Parts;
use http::{HeaderName, header};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::address::ClientAddr;

/// Finds the key of a request. Implemented by [`ClientAddr`], by [`KeyBy`], and by functions of the request's head.
///
/// There is a key for every request. What a client can leave out or make up (an API key that nobody has checked, a cookie) is
/// no key by itself: take it together with the address, or fall back to that.
pub trait Extract<K>: Send + Sync + 'static {
    /// The key of `request`.
    fn extract(&self, request: &Parts) -> K;
}

impl<K, F: Fn(&Parts) -> K + Send + Sync + 'static> Extract<K> for F {
    fn extract(&self, request: &Parts) -> K {
        self(request)
    }
}

/// What [`KeyBy`] makes of a request: a keyed hash of 128 bits, so that keys of any kind and length, and any mixture of
/// them, take 16 bytes and say nothing of whom they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u64; 2]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

type Feed = dyn Fn(&Parts, &mut SipHasher13) -> bool + Send + Sync;

/// Makes [`Key`]s of parts of a request: the client's address, a header, a cookie, an extension, the method, the path, or
/// [both](Self::and) of two, or [one or else](Self::or) the other.
///
/// Parts of different kinds are never the same key, and neither are two parts that only look alike when put together. Nothing
/// is allocated. What is not there (a header that is missing) is a part too, the same for all requests that lack it, unless
/// there is something to fall back to.
///
/// ```
/// use std::net::SocketAddr;
/// use tollgate::http::{ClientAddr, Extract, KeyBy};
///
/// # #[derive(Clone)] struct User { id: u64 }
/// let address = ClientAddr::peer(|peer: &SocketAddr| peer.ip());
/// // Users by who they are (some inner layer has checked that), guests by their address; each route by itself.
/// let key = KeyBy::extension(|user: &User| user.id).or(KeyBy::client(address)).and(KeyBy::path());
/// # let (request, ()) = http::Request::new(()).into_parts();
/// let _ = key.extract(&request);
/// ```
#[derive(Clone)]
pub struct KeyBy {
    feed: Arc<Feed>,
    secret: (u64, u64),
}

/// What a part of a key is, so that no two of different kinds are the same.
#[derive(Clone, Copy, Hash)]
enum Kind {
    Missing,
    Client,
    Header,
    Cookie,
    Extension,
    Method,
    Path,
    Other,
    Both,
    First,
    Second,
}

impl KeyBy {
    fn new(kind: Kind, feed: impl Fn(&Parts, &mut SipHasher13) -> bool + Send + Sync + 'static) -> Self {
        let feed = move |request: &Parts, hasher: &mut SipHasher13| {
            kind.hash(hasher);
            feed(request, hasher)
        };
        Self { feed: Arc::new(feed), secret: process_secret() }
    }

    /// The client, by its address; all of unknown address are missing one.
    #[must_use]
    pub fn client(address: ClientAddr) -> Self {
        Self::new(Kind::Client, move |request, hasher| {
            let found = address.find(request).is_some();
            address.client(request).hash(hasher);
            found
        })
    }

    /// All values of a header.
    #[must_use]
    pub fn header(name: HeaderName) -> Self {
        Self::new(Kind::Header, move |request, hasher| {
            let values = request.headers.get_all(&name);
            let count = values.iter().count();
            count.hash(hasher);
            values.iter().for_each(|value| value.as_bytes().hash(hasher));
            count > 0
        })
    }

    /// The first cookie of a name.
    #[must_use]
    pub fn cookie(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::new(Kind::Cookie, move |request, hasher| {
            let lines = request.headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
            let cookies = lines.flat_map(Cookie::split_parse).filter_map(Result::ok);
            let value = cookies.filter(|cookie| cookie.name() == name).map(|cookie| cookie.value().hash(hasher)).next();
            value.is_some()
        })
    }

    /// A part of the request extension of type `T`, such as the user that an outer layer has found, or the route with axum's
    /// `MatchedPath`.
    #[must_use]
    pub fn extension<T, K>(part: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        K: Hash,
    {
        Self::new(Kind::Extension, move |request, hasher| {
            let found = request.extensions.get().map(|extension| part(extension).hash(hasher));
            found.is_some()
        })
    }

    /// The method.
    #[must_use]
    pub fn method() -> Self {
        Self::new(Kind::Method, |request, hasher| {
            request.method.hash(hasher);
            true
        })
    }

    /// The path as it was sent, without the query: any spelling of it is another. Behind a router take the route that it has
    /// matched, by [`extension`](Self::extension).
    #[must_use]
    pub fn path() -> Self {
        Self::new(Kind::Path, |request, hasher| {
            request.uri.path().hash(hasher);
            true
        })
    }

    /// Anything else, or `None` if it is missing.
    #[must_use]
    pub fn part<K: Hash>(part: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static) -> Self {
        Self::new(Kind::Other, move |request, hasher| {
            let found = part(request).map(|part| part.hash(hasher));
            found.is_some()
        })
    }

    /// Both together: each pair of them is a key. Missing only if both are.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let secret = self.secret;
        let both = Self::new(Kind::Both, move |request, hasher| {
            let found = feed_or_missing(&*self.feed, request, hasher);
            feed_or_missing(&*other.feed, request, hasher) || found
        });
        Self { secret, ..both }
    }

    /// This, or `other` where it is missing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let secret = self.secret;
        let feed = move |request: &Parts, hasher: &mut SipHasher13| {
            let unfed = *hasher;
            Kind::First.hash(hasher);
            if (self.feed)(request, hasher) {
                return true;
            }
            *hasher = unfed;
            Kind::Second.hash(hasher);
            (other.feed)(request, hasher)
        };
        Self { feed: Arc::new(feed), secret }
    }

    /// Makes the same keys in every process that has the same secret, for limits that servers share. Unless set, each process
    /// has a random one of its own. Whoever knows the secret can find keys that are the same.
    #[must_use]
    pub fn secret(self, secret: [u8; 16]) -> Self {
        let secret = u128::from_le_bytes(secret);
        Self { secret: (secret as u64, (secret >> 64) as u64), ..self }
    }

    /// The key of `request`.
    #[must_use]
    pub fn key(&self, request: &Parts) -> Key {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        feed_or_missing(&*self.feed, request, &mut hasher);
        let hash = hasher.finish128();
        Key([hash.h1, hash.h2])
    }
}

fn feed_or_missing(feed: &Feed, request: &Parts, hasher: &mut SipHasher13) -> bool {
    let unfed = *hasher;
    let found = feed(request, hasher);
    if !found {
        *hasher = unfed;
        Kind::Missing.hash(hasher);
    }
    found
}

impl Extract<Key> for KeyBy {
    fn extract(&self, request: &Parts) -> Key {
        self.key(request)
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBy").finish_non_exhaustive()
    }
}

/// Random, and the same for all of a process.
fn process_secret() -> (u64, u64) {
    static SECRET: OnceLock<(u64, u64)> = OnceLock::new();
    *SECRET.get_or_init(|| (RandomState::new().hash_one(1_u8), RandomState::new().hash_one(2_u8)))
}

/// What a key is called where it is told to anybody: a hash of it by this process's secret.
pub(super) fn alias(key: &impl Hash) -> u64 {
    let (first, second) = process_secret();
    let mut hasher = SipHasher13::new_with_keys(second, first);
    key.hash(&mut hasher);
    hasher.finish()
}
