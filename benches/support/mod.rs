//! What the benchmarks share.
// Each benchmark uses a part of it.
#![allow(dead_code)]

pub mod contender;
pub mod measure;
pub mod plot;
pub mod report;

use criterion::Criterion;

use report::Report;

/// How a benchmark was called.
pub struct Call {
    /// To run everything once, quickly, just to see that it works.
    pub test: bool,
    /// To print tables, and nothing else.
    pub ratios: bool,
    /// To print tables and put them, and the plots, into the documentation.
    pub write: bool,
}

impl Call {
    pub fn read() -> Self {
        let given = |name: &str| std::env::args().any(|argument| argument == name);
        Self { test: given("--test"), ratios: given("--ratios"), write: given("--write") }
    }

    /// The tables first, then the same work under criterion, unless only one of the two is wanted.
    pub fn run(&self, bench: &'static str, tables: impl Fn(&Report), groups: impl Fn(&mut Criterion)) {
        if !self.test {
            tables(&Report::new(bench, "performance.md", self.write));
        }
        if !self.ratios && !self.write {
            let mut criterion = Criterion::default().configure_from_args();
            groups(&mut criterion);
            criterion.final_summary();
        }
    }
}
