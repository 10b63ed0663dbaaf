//! Where requests are decided about: all policies of a layer, as one.

use std::{fmt, slice};

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode, response};
use smallvec::SmallVec;

use super::address::ClientAddr;
use super::body::Meter;
use super::fields::{Fields, HeaderFields, Standing, put_refusal};
use super::gate::Account;
use super::policy::{Matches, Policy};
use super::refusal::{Answer, Refusal, plain};
use super::watch::{Count, Counters, Watch};
use crate::access::{Access, AccessList};
use crate::decision::Decision;
use crate::together::{Limit, check_all, peek_all, times};

/// So many policies apply to a request as a rule: no more is allocated for.
const USUAL: usize = 4;

type Few<T> = SmallVec<[T; USUAL]>;

#[derive(Default)]
pub(super) struct Desk {
    policies: Vec<NamedPolicy>,
    pub(super) fields: HeaderFields,
    pub(super) answer: Answer,
    pub(super) exempt: Vec<Box<Matches>>,
    pub(super) access: Option<(AccessList, ClientAddr)>,
    pub(super) watch: Watch,
}

/// A policy, with the names of its quotas.
struct NamedPolicy {
    policy: Policy,
    names: Vec<String>,
    counters: Counters,
}

/// What is to be done with a request.
pub(super) enum Outcome {
    /// It goes on, and its answer is stamped.
    Pass(Stamp),
    /// It is answered here.
    Answer(Response<Bytes>),
}

/// What is to be done with an answer.
pub(super) enum Stamp {
    /// To carry these fields.
    Fields(Fields),
    /// What the request has cost is told by the answer.
    Settle(Vec<Kept>),
}

impl Default for Stamp {
    fn default() -> Self {
        Self::Fields(Fields::default())
    }
}

/// A policy that a request has passed, by its place, until there is an answer.
pub(super) struct Kept {
    place: usize,
    account: Box<dyn Account>,
    cost: u64,
}

/// A policy that is for a request; a list of them, the last first, each on the stack of the one before it: so keys and limits
/// of all types are kept without allocation.
struct Node<'a> {
    place: usize,
    account: &'a dyn Account,
    limit: &'a dyn Limit,
    cost: u64,
    before: Option<&'a Node<'a>>,
}

/// A decision, and by which of the policies that were asked, and which of its quotas.
struct Ruling {
    decision: Decision,
    node: usize,
    quota: usize,
    /// Whether no wait helps.
    is_never: bool,
}

impl Ruling {
    fn is_refusal(&self) -> bool {
        self.is_never || !self.decision.is_allowed()
    }
}

impl Desk {
    pub(super) fn add(&mut self, policy: Policy) {
        let mut names: Vec<String> = policy.quotas().into_iter().map(|(name, _)| name).collect();
        let taken: Vec<&String> = self.policies.iter().flat_map(|named| &named.names).collect();
        for name in &mut names {
            let is_taken = |name: &String| taken.contains(&name);
            if is_taken(name) {
                let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
                if let Some(free) = numbered.into_iter().find(|name| !is_taken(name)) {
                    *name = free;
                }
            }
        }
        self.policies.push(NamedPolicy { policy, names, counters: Counters::default() });
    }

    pub(super) fn decide(&self, request: &Parts) -> Outcome {
        if self.exempt.iter().any(|matches| matches(request)) {
            return Outcome::Pass(Stamp::default());
        }
        if let Some((list, client)) = &self.access
            && let Some(address) = client.find(request)
        {
            match list.look(address) {
                Access::Allowed => return Outcome::Pass(Stamp::default()),
                Access::Denied => return Outcome::Answer(forbidden(request)),
                Access::Limited => (),
            }
        }
        self.enter(0, request, None)
    }

    /// Finds the policies from the place `from` on that are for a request, and decides when there are no more.
    fn enter(&self, from: usize, request: &Parts, before: Option<&Node<'_>>) -> Outcome {
        let mut policies = self.policies.iter().enumerate().skip(from);
        let Some((index, NamedPolicy { policy, .. })) = policies.find(|(_, named)| named.policy.matches(request))
        else {
            return self.conclude(request, before);
        };
        let mut outcome = Outcome::Pass(Stamp::default());
        policy.accounts.open(request, &mut |account| {
            account.with(&mut |limit| {
                let node = Node { place: index, account, limit, cost: policy.cost_of(request), before };
                outcome = self.enter(index + 1, request, Some(&node));
            });
        });
        outcome
    }

    fn conclude(&self, request: &Parts, last: Option<&Node<'_>>) -> Outcome {
        let mut nodes: Few<&Node<'_>> = std::iter::successors(last, |node| node.before).collect();
        nodes.reverse();
        let is_dry_run = |node: &&&Node<'_>| self.policies[node.place].policy.is_dry_run;
        let enforced: Few<&Node<'_>> = nodes.iter().filter(|node| !is_dry_run(node)).copied().collect();
        if let Some(ruling) = ask(&enforced)
            && ruling.is_refusal()
        {
            return Outcome::Answer(self.refuse(request, &nodes, &enforced, &ruling));
        }
        enforced.iter().for_each(|node| self.count(node, Count::Allowed));
        for node in nodes.iter().filter(is_dry_run) {
            match ask(&[node]) {
                Some(ruling) if ruling.is_refusal() => {
                    self.count(node, Count::WouldRefuse);
                    self.watch.refused(&self.refusal(&[node], &ruling, true), request);
                }
                _ => self.count(node, Count::Allowed),
            }
        }
        Outcome::Pass(self.stamp_for(&nodes))
    }

    fn count(&self, node: &Node<'_>, count: Count) {
        let NamedPolicy { names, counters, .. } = &self.policies[node.place];
        counters.count(names.first().map_or("", String::as_str), count);
    }

    /// What the answer to a request that has passed is to carry.
    fn stamp_for(&self, nodes: &[&Node<'_>]) -> Stamp {
        if nodes.iter().any(|node| self.policies[node.place].policy.waits_for_answer()) {
            let keep = |node: &&Node<'_>| Kept { place: node.place, account: node.account.keep(), cost: node.cost };
            return Stamp::Settle(nodes.iter().map(keep).collect());
        }
        if !self.fields.is_any() {
            return Stamp::default();
        }
        let standings: Few<Standing<'_>> =
            nodes.iter().flat_map(|node| self.standings(node.place, node.account, node.limit)).collect();
        Stamp::Fields(self.fields.tell(&standings, None, None))
    }

    /// How the quotas of a policy stand, if clients are told.
    fn standings<'a>(&'a self, place: usize, account: &dyn Account, limit: &dyn Limit) -> Few<Standing<'a>> {
        let NamedPolicy { policy, names, .. } = &self.policies[place];
        if policy.is_hidden {
            return Few::new();
        }
        let key = account.alias();
        let stand = |(index, (decision, name)): (usize, (Decision, &'a String))| {
            Some(Standing { name, quota: account.quota(index)?, decision, key })
        };
        peek_all(&[limit]).zip(names).enumerate().filter_map(stand).collect()
    }

    /// Settles what a request has cost, and tells clients how they stand.
    pub(super) fn stamp(&self, stamp: Stamp, answer: &mut response::Parts) -> Meter {
        let kept = match stamp {
            Stamp::Fields(fields) => {
                fields.put(&mut answer.headers);
                return Meter::default();
            }
            Stamp::Settle(kept) => kept,
        };
        for Kept { place, account, cost } in &kept {
            let settled = self.policies[*place].policy.settled(answer, *cost);
            account.charge(settled.saturating_sub(*cost));
            account.refund(cost.saturating_sub(settled));
        }
        if self.fields.is_any() {
            let mut standings = Few::new();
            for Kept { place, account, .. } in &kept {
                account.with(&mut |limit| standings.extend(self.standings(*place, &**account, limit)));
            }
            self.fields.tell(&standings, None, None).put(&mut answer.headers);
        }
        let charged = |kept: Kept| Some((kept.account, self.policies[kept.place].policy.bytes_per_unit?));
        Meter::new(kept.into_iter().filter_map(charged).collect())
    }

    fn refuse(&self, request: &Parts, nodes: &[&Node<'_>], enforced: &[&Node<'_>], ruling: &Ruling) -> Response<Bytes> {
        let refusing = enforced[ruling.node];
        self.count(refusing, Count::Refused);
        let refusal = self.refusal(enforced, ruling, false);
        self.watch.refused(&refusal, request);
        let mut response = self.answer.to(&refusal, request);
        let retry_after = refusal.retry_after_seconds();
        if self.fields.is_any() {
            let (mut standings, mut binding) = (Few::<Standing<'_>>::new(), None);
            for node in nodes {
                let mut of_node = self.standings(node.place, node.account, node.limit);
                if node.place == refusing.place
                    && let Some(standing) = of_node.get_mut(ruling.quota)
                {
                    // As it was when it refused, and also if it is the key that is blocked.
                    standing.decision = ruling.decision;
                    binding = Some(standings.len() + ruling.quota);
                }
                standings.extend(of_node);
            }
            self.fields.tell(&standings, binding, retry_after).put(response.headers_mut());
        }
        put_refusal(response.headers_mut(), retry_after.filter(|_| self.fields.retry_after));
        response
    }

    /// What there is to be told of a refusal by some policies together.
    fn refusal(&self, nodes: &[&Node<'_>], ruling: &Ruling, is_dry_run: bool) -> Refusal<'_> {
        let refusing = nodes[ruling.node];
        let name = |node: &Node<'_>, quota: usize| self.policies[node.place].names.get(quota).map(String::as_str);
        let policy = name(refusing, ruling.quota).unwrap_or_default();
        let mut violated = Vec::new();
        for node in nodes {
            let short = |(quota, decision): (usize, Decision)| {
                let is_binding = node.place == refusing.place && quota == ruling.quota;
                (is_binding || decision.remaining() < node.cost).then(|| name(node, quota)).flatten()
            };
            violated.extend(peek_all(slice::from_ref(&node.limit)).enumerate().filter_map(short));
        }
        let (key, is_never) = (refusing.account.alias(), ruling.is_never);
        Refusal { policy, violated, decision: ruling.decision, key, is_never, is_dry_run }
    }
}

/// Takes from all, or from none. `None` if there are none.
fn ask(nodes: &[&Node<'_>]) -> Option<Ruling> {
    let decided = match nodes {
        [] => return None,
        [node] => node.account.check(node.cost),
        _ => {
            let costs: Few<_> = nodes.iter().map(|node| times(node.limit, node.cost)).collect();
            let limits: Few<&dyn Limit> = costs.iter().map(|limit| limit as &dyn Limit).collect();
            check_all(&limits, 1)
        }
    };
    let quotas = || {
        nodes.iter().enumerate().flat_map(|(index, node)| {
            peek_all(slice::from_ref(&node.limit)).enumerate().map(move |(quota, decision)| (index, quota, decision))
        })
    };
    Some(match decided {
        Ok(decision) if decision.is_allowed() => Ruling { decision, node: 0, quota: 0, is_never: false },
        Ok(decision) => {
            let (node, quota, _) = quotas().nth(decision.quota_index())?;
            Ruling { decision, node, quota, is_never: false }
        }
        Err(_) => {
            let (node, quota, decision) =
                quotas().find(|(index, _, decision)| decision.limit() < nodes[*index].cost)?;
            Ruling { decision, node, quota, is_never: true }
        }
    })
}

fn forbidden(request: &Parts) -> Response<Bytes> {
    let text = Bytes::from_static(b"Forbidden.\n");
    let mut response = plain(StatusCode::FORBIDDEN, "text/plain; charset=utf-8", text, &request.method);
    put_refusal(response.headers_mut(), None);
    response
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("policies", &self.policies.iter().map(|named| &named.policy).collect::<Vec<_>>())
            .field("fields", &self.fields)
            .field("answer", &self.answer)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
