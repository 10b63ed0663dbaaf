//! What happened in each of the last seconds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// How many seconds are kept.
const KEPT: usize = 120;

/// What was allowed and refused in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Second {
    pub allowed: u64,
    pub refused: u64,
}

/// The last seconds, and what was counted at the end of the last of them.
#[derive(Debug, Default)]
pub struct History(Mutex<(VecDeque<Second>, Second)>);

impl History {
    /// Ends a second, with what has been counted by then since the start.
    pub fn note(&self, allowed: u64, refused: u64) {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (seconds, last) = &mut *history;
        let now = Second { allowed, refused };
        seconds.push_back(Second {
            allowed: now.allowed.saturating_sub(last.allowed),
            refused: now.refused.saturating_sub(last.refused),
        });
        *last = now;
        if seconds.len() > KEPT {
            seconds.pop_front();
        }
    }

    pub fn seconds(&self) -> Vec<Second> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.iter().copied().collect()
    }
}
