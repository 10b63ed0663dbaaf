//! What several policies decide about a request, as one.

use std::slice;

use smallvec::SmallVec;

use super::gate::Account;
use crate::decision::Decision;
use crate::error::CostError;
use crate::together::{Limit, check_all, peek_all, times};

/// For so many policies nothing is allocated.
const USUAL: usize = 4;

pub(super) type Few<T> = SmallVec<[T; USUAL]>;

/// A policy that is for a request, by its place; a list of them, the last first, each on the stack of the one before it: so
/// keys and limits of all types are kept without allocation.
pub(super) struct Node<'a> {
    pub(super) place: usize,
    pub(super) account: &'a dyn Account,
    pub(super) limit: &'a dyn Limit,
    pub(super) cost: u64,
    pub(super) before: Option<&'a Node<'a>>,
}

impl<'a> Node<'a> {
    /// How each of its quotas stands.
    pub(super) fn quotas(&'a self) -> impl Iterator<Item = Decision> + 'a {
        peek_all(slice::from_ref(&self.limit))
    }
}

/// A decision, and by which of the policies that were asked, and which of its quotas.
pub(super) struct Ruling {
    pub(super) decision: Decision,
    pub(super) node: usize,
    pub(super) quota: usize,
    /// Whether no wait helps.
    pub(super) is_never: bool,
}

impl Ruling {
    /// Takes from all, or from none. `None` if there are none.
    pub(super) fn ask(nodes: &[&Node<'_>]) -> Option<Self> {
        let decided = match nodes {
            [] => return None,
            [node] => node.account.check(node.cost),
            _ => {
                let costs: Few<_> = nodes.iter().map(|node| times(node.limit, node.cost)).collect();
                let limits: Few<&dyn Limit> = costs.iter().map(|limit| limit as &dyn Limit).collect();
                check_all(&limits, 1)
            }
        };
        Self::of(nodes, decided)
    }

    /// What was decided by some policies.
    pub(super) fn of(nodes: &[&Node<'_>], decided: Result<Decision, CostError>) -> Option<Self> {
        let numbered = |(node, of): (usize, &&Node<'_>)| {
            of.quotas().enumerate().map(|(quota, decision)| (node, quota, decision)).collect::<Few<_>>()
        };
        let mut quotas = nodes.iter().enumerate().flat_map(numbered);
        // Where a quota has just been changed, what it says now may not show why it has refused. It has.
        let (is_never, (node, quota, decision)) = match decided {
            Ok(decision) if decision.is_allowed() => (false, (0, 0, decision)),
            Ok(decision) => {
                let refusing = quotas.nth(decision.quota_index()).unwrap_or((0, 0, decision));
                (false, (refusing.0, refusing.1, decision))
            }
            Err(_) => {
                let quotas = quotas.collect::<Few<_>>();
                let short = quotas.iter().find(|(node, _, decision)| decision.limit() < nodes[*node].cost);
                (true, *short.or(quotas.first())?)
            }
        };
        Some(Self { decision, node, quota, is_never })
    }

    pub(super) fn is_refusal(&self) -> bool {
        self.is_never || !self.decision.is_allowed()
    }
}
