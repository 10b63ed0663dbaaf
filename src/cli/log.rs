//! Lines of access logs in the common and combined formats, read as bytes: nothing in them needs to be UTF-8.
//!
//! `client ident user [day/Mon/year:hour:minute:second zone] "request" status bytes`, and in the combined format
//! `"referrer" "user agent"` after that, each with backslash escapes. More fields may follow.

use std::fmt;

use clap::ValueEnum;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use memchr::{memchr, memchr_iter, memchr2};

pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The length of `17/May/2015:10:05:03 +0000`.
const TIME_LEN: usize = 26;

/// What a line must look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Each line may be in either format
    #[default]
    Auto,
    /// Every line ends after the size of the response
    Common,
    /// Every line goes on with referrer and user agent
    Combined,
}

/// A line that is a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The first field: an address, or a name where the server looked it up.
    pub client: &'a [u8],
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    Blank,
    NoClient,
    NoTime,
    BadTime,
    NoRequest,
    NoStatus,
    NoAgent,
    NotCommon,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blank => "it is blank",
            Self::NoClient => "it does not begin with a client address",
            Self::NoTime => "no [day/Mon/year:hour:minute:second zone] stands before a quoted request",
            Self::BadTime => "its time is impossible",
            Self::NoRequest => "its quoted request does not end",
            Self::NoStatus => "no status and size stand after the request",
            Self::NoAgent => "no quoted referrer and user agent stand after the size",
            Self::NotCommon => "it goes on after the size, which the common format does not",
        })
    }
}

/// Reads lines; remembers the last minute, which the next line most likely shares.
#[derive(Debug, Default)]
pub struct LineParser {
    format: Format,
    minute: Minute,
}

impl LineParser {
    pub fn new(format: Format) -> Self {
        Self { format, minute: Minute::default() }
    }

    /// Reads one line, without its line end.
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Entry<'a>, Reject> {
        if line.trim_ascii().is_empty() {
            return Err(Reject::Blank);
        }
        let client_len = memchr(b' ', line).filter(|&len| len > 0).ok_or(Reject::NoClient)?;
        let (client, rest) = line.split_at(client_len);
        let (time, rest) = split_time(rest).ok_or(Reject::NoTime)?;
        let time = self.minute.nanos(time).ok_or(Reject::BadTime)?;
        let rest = after_quoted(rest).ok_or(Reject::NoRequest)?;
        let rest = after_status_and_size(rest).ok_or(Reject::NoStatus)?;
        self.check_end(rest)?;
        Ok(Entry { client, time })
    }

    /// Checks what follows the size, so that a line that was cut off is not taken for a request.
    fn check_end(&self, rest: &[u8]) -> Result<(), Reject> {
        match (self.format, rest.is_empty()) {
            (Format::Auto | Format::Common, true) => Ok(()),
            (Format::Common, false) => Err(Reject::NotCommon),
            (Format::Auto, false) | (Format::Combined, _) => after_agent(rest).ok_or(Reject::NoAgent),
        }
    }
}

/// The time and what follows its `] `, which must be a quote: a user name may hold anything else, a time included.
fn split_time(fields: &[u8]) -> Option<(&[u8; TIME_LEN], &[u8])> {
    memchr_iter(b'[', fields).find_map(|at| {
        let (time, rest) = fields.get(at + 1..)?.split_first_chunk()?;
        let rest = rest.strip_prefix(b"] ")?;
        rest.starts_with(b"\"").then_some((time, rest))
    })
}

/// What follows a quoted field.
fn after_quoted(field: &[u8]) -> Option<&[u8]> {
    let mut rest = field.strip_prefix(b"\"")?;
    loop {
        let at = memchr2(b'"', b'\\', rest)?;
        if rest[at] == b'"' {
            return rest.get(at + 1..);
        }
        rest = rest.get(at + 2..)?;
    }
}

/// What follows ` 200 5316`, or ` 304 -`.
fn after_status_and_size(rest: &[u8]) -> Option<&[u8]> {
    let (status, rest) = rest.strip_prefix(b" ")?.split_first_chunk::<3>()?;
    let rest = rest.strip_prefix(b" ").filter(|_| status.iter().all(u8::is_ascii_digit))?;
    let size_len = memchr(b' ', rest).unwrap_or(rest.len());
    let (size, rest) = rest.split_at(size_len);
    let is_size = size == b"-" || !size.is_empty() && size.iter().all(u8::is_ascii_digit);
    is_size.then_some(rest)
}

/// Finds ` "referrer" "user agent"`, and nothing glued to it.
fn after_agent(rest: &[u8]) -> Option<()> {
    let rest = after_quoted(rest.strip_prefix(b" ")?)?;
    let rest = after_quoted(rest.strip_prefix(b" ")?)?;
    (rest.is_empty() || rest.starts_with(b" ")).then_some(())
}

/// A minute of the log and when it began: the calendar is asked once a minute, not once a line.
#[derive(Debug, Default)]
struct Minute {
    date: [u8; 18],
    zone: [u8; 6],
    start: u64,
}

impl Minute {
    /// The nanoseconds from the Unix epoch to a time like `17/May/2015:10:05:03 +0000`, if there is such a time and it
    /// lies between 1970 and 2554.
    fn nanos(&mut self, time: &[u8; TIME_LEN]) -> Option<u64> {
        let (date, rest) = time.split_first_chunk()?;
        let (second, zone) = rest.split_first_chunk::<2>()?;
        // A leap second is written as 60, and is the first of the next minute in Unix time.
        let second = number(*second).filter(|&second| second <= 60)?;
        if *date != self.date || zone != self.zone {
            *self = Self { date: *date, zone: zone.try_into().ok()?, start: minute_start(date, zone)? };
        }
        (self.start + u64::from(second)).checked_mul(NANOS_PER_SECOND)
    }
}

/// Seconds from the Unix epoch to `17/May/2015:10:05:`, by the clocks of the zone ` +0000`.
fn minute_start(date: &[u8; 18], zone: &[u8]) -> Option<u64> {
    let [d1, d2, b'/', month @ .., b'/', y1, y2, y3, y4, b':', h1, h2, b':', m1, m2, b':'] = date else {
        return None;
    };
    let year = number([*y1, *y2])? * 100 + number([*y3, *y4])?;
    let day = i8::try_from(number([*d1, *d2])?).ok()?;
    let hour = i8::try_from(number([*h1, *h2])?).ok()?;
    let minute = i8::try_from(number([*m1, *m2])?).ok()?;
    let civil = DateTime::new(i16::try_from(year).ok()?, month_number(month)?, day, hour, minute, 0, 0).ok()?;
    let start = zone_offset(zone)?.to_timestamp(civil).ok()?;
    u64::try_from(start.as_second()).ok()
}

fn month_number(name: &[u8]) -> Option<i8> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    (1..).zip(MONTHS).find_map(|(number, month)| (month == name).then_some(number))
}

/// The offset in ` -0730`.
fn zone_offset(zone: &[u8]) -> Option<Offset> {
    let [b' ', sign, h1, h2, m1, m2] = zone else { return None };
    let hours = i32::from(number([*h1, *h2])?);
    let minutes = i32::from(number([*m1, *m2]).filter(|&minutes| minutes < 60)?);
    let seconds = hours * 3600 + minutes * 60;
    match sign {
        b'+' => Offset::from_seconds(seconds).ok(),
        b'-' => Offset::from_seconds(-seconds).ok(),
        _ => None,
    }
}

/// A number of two digits.
fn number(digits: [u8; 2]) -> Option<u16> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
    Some(digit(digits[0])? * 10 + digit(digits[1])?)
}
