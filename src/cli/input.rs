//! Opening what the user named: a file, or `-` for standard input, with a progress bar where one helps.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

/// Inputs shorter than this are read before a bar could be looked at.
const LONG_BYTES: u64 = 16 << 20;

/// An opened input.
pub struct Input {
    /// How messages call it.
    pub name: String,
    source: Box<dyn Read>,
    length: Option<u64>,
    read: u64,
    bar: Option<ProgressBar>,
}

impl Input {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::new("standard input".to_owned(), Box::new(io::stdin().lock()), None));
        }
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| name.clone())?;
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        Ok(Self::new(name, Box::new(file), length))
    }

    fn new(name: String, source: Box<dyn Read>, length: Option<u64>) -> Self {
        Self { name, source, length, read: 0, bar: None }
    }

    /// Counts what was read, and shows it once there is a lot of it. A bar draws itself only on a terminal.
    fn advance(&mut self, bytes: u64) {
        let was_short = self.read < LONG_BYTES;
        self.read += bytes;
        if was_short && self.read >= LONG_BYTES {
            self.bar = Some(bar(self.length));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.read);
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.advance(count as u64);
        Ok(count)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(length: Option<u64>) -> ProgressBar {
    let Some(length) = length else {
        return styled(ProgressBar::new_spinner(), "{spinner} {bytes} read, {bytes_per_sec}");
    };
    styled(ProgressBar::new(length), "{bar:40} {bytes} of {total_bytes}, {eta} to go")
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    // A template that does not parse would only cost the bar its looks.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
