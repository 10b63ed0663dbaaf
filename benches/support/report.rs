//! Tables, printed and put into the documentation, so that nobody types a number.

use std::fmt::{self, Display};
use std::fs;
use std::path::PathBuf;

pub struct Report {
    bench: &'static str,
    page: &'static str,
    write: bool,
}

impl Report {
    /// What `bench` has to tell on a page of the documentation.
    pub fn new(bench: &'static str, page: &'static str, write: bool) -> Self {
        Self { bench, page, write }
    }

    pub fn writes(&self) -> bool {
        self.write
    }

    /// Prints a text, and, if asked to, puts it between its two markers on the page.
    pub fn put(&self, name: &str, text: &impl Display) {
        println!("{name}\n\n{text}");
        if self.write {
            let path = docs().join(self.page);
            let old = fs::read_to_string(&path).unwrap();
            let command = format!("cargo bench --bench {} -- --write", self.bench);
            fs::write(path, between_markers(&old, name, &command, &text.to_string())).unwrap();
        }
    }
}

/// Where the documentation is, wherever the benchmark runs.
pub fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn between_markers(old: &str, name: &str, command: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name}:"), format!("<!-- end {name} -->"));
    let parts = old.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.unwrap_or_else(|| panic!("the page has no markers for {name}"));
    format!("{before}{begin} {command} -->\n{}\n{end}{after}", text.trim_end())
}

/// The machine, as it tells of itself.
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "Measured on: {}, {threads} processors, {}.\n",
        model.unwrap_or(std::env::consts::ARCH),
        std::env::consts::OS
    )
}

/// A table of Markdown.
pub struct Table(Vec<Vec<String>>);

impl Table {
    pub fn new<T: Display>(head: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self(Vec::new());
        table.row(head);
        table
    }

    pub fn row<T: Display>(&mut self, fields: impl IntoIterator<Item = T>) {
        self.0.push(fields.into_iter().map(|field| field.to_string()).collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, row) in self.0.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if index == 0 {
                writeln!(f, "|{}", "---|".repeat(row.len()))?;
            }
        }
        Ok(())
    }
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let comma = |index: usize| index > 0 && (places - index).is_multiple_of(3);
    digits.chars().enumerate().fold(String::new(), |text, (index, digit)| {
        if comma(index) { format!("{text},{digit}") } else { format!("{text}{digit}") }
    })
}

/// Nanoseconds, in a unit that suits them.
pub fn time(nanos: f64) -> String {
    match nanos {
        ..1_000.0 => format!("{nanos:.0} ns"),
        ..1_000_000.0 => format!("{:.1} µs", nanos / 1e3),
        _ => format!("{:.1} ms", nanos / 1e6),
    }
}
