//! Where requests are decided about: all policies of a layer, as one.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode, response};

use super::address::ClientAddr;
use super::body::Meter;
use super::fields::{Fields, HeaderFields, Standing, Told, put_refusal};
use super::gate::Account;
use super::policy::{Asks, Matches, Policy};
use super::refusal::{Answer, Refusal, plain};
use super::ruling::{Few, Node, Ruling};
use super::watch::{Count, Counters, Watch};
use crate::access::{Access, AccessList};
use crate::decision::Decision;
use crate::together::{Limit, peek_all};

#[derive(Default)]
pub(super) struct Desk {
    policies: Vec<NamedPolicy>,
    pub(super) fields: HeaderFields,
    pub(super) answer: Answer,
    pub(super) exempt: Vec<Box<Matches>>,
    pub(super) access: Option<(AccessList, ClientAddr)>,
    pub(super) watch: Watch,
}

/// A policy, with its quotas as clients are told of them.
struct NamedPolicy {
    policy: Policy<Asks>,
    quotas: Vec<Told>,
    counters: Counters,
}

/// A limit that was asked beforehand, with the place of its policy.
#[cfg(feature = "redis")]
type BeforeHand = (usize, super::shared::Asked);
#[cfg(not(feature = "redis"))]
type BeforeHand = ();

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
    /// Whether it took the cost: a policy on trial may not have, and has nothing to settle then.
    is_charged: bool,
}

impl Desk {
    pub(super) fn add(&mut self, policy: Policy<Asks>) {
        let mut quotas = policy.quotas();
        let taken: Vec<&str> = self.policies.iter().flat_map(|named| &named.quotas).map(|told| &*told.name).collect();
        for (name, _) in &mut quotas {
            let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
            let mut names = std::iter::once(name.clone()).chain(numbered);
            if let Some(free) = names.find(|name| !taken.contains(&name.as_str())) {
                *name = free;
            }
        }
        let quotas = quotas.into_iter().map(|(name, quota)| Told::new(name, quota)).collect();
        self.policies.push(NamedPolicy { policy, quotas, counters: Counters::default() });
    }

    pub(super) fn decide(&self, request: &Parts) -> Outcome {
        self.let_in(request).unwrap_or_else(|| self.ask(request, &[]))
    }

    /// The same, where some limits have to be asked elsewhere. Those are asked first; one that comes after a refusal is not
    /// asked any more.
    #[cfg(feature = "redis")]
    pub(super) async fn decide_shared(&self, request: &Parts) -> Outcome {
        if let Some(outcome) = self.let_in(request) {
            return outcome;
        }
        let mut asked = Vec::new();
        for (place, NamedPolicy { policy, .. }) in self.policies.iter().enumerate() {
            if let Asks::Elsewhere(elsewhere) = &policy.limiter
                && policy.matches(request)
            {
                let answer = elsewhere.0.ask(request, policy.cost_of(request)).await;
                let is_over = answer.is_refused() && !policy.is_dry_run;
                asked.push((place, answer));
                if is_over {
                    break;
                }
            }
        }
        self.ask(request, &asked)
    }

    /// What is done with a request whatever the limits say, if anything.
    fn let_in(&self, request: &Parts) -> Option<Outcome> {
        if self.exempt.iter().any(|matches| matches(request)) {
            return Some(Outcome::Pass(Stamp::default()));
        }
        if let Some((list, client)) = &self.access
            && let Some(address) = client.find(request)
        {
            match list.look(address) {
                Access::Allowed => return Some(Outcome::Pass(Stamp::default())),
                Access::Denied => return Some(Outcome::Answer(forbidden(request))),
                Access::Limited => (),
            }
        }
        None
    }

    /// Decides by all policies that are for a request, some of which may have been asked beforehand.
    fn ask(&self, request: &Parts, asked: &[BeforeHand]) -> Outcome {
        let mut places = (0..self.policies.len()).filter(|&place| self.policies[place].policy.matches(request));
        match (places.next(), places.next()) {
            (None, _) => Outcome::Pass(Stamp::default()),
            (Some(only), None) => self.ask_one(only, request, asked),
            (Some(first), Some(_)) => self.ask_all(first, request, asked, None),
        }
    }

    /// Finds the key of a request; false if the policy has to be asked beforehand, and has not been.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "nothing is asked beforehand"))]
    fn open(&self, place: usize, request: &Parts, asked: &[BeforeHand], then: &mut dyn FnMut(&dyn Account)) -> bool {
        match &self.policies[place].policy.limiter {
            Asks::Here(here) => here.0.open(request, then),
            #[cfg(feature = "redis")]
            Asks::Elsewhere(_) => match asked.iter().find(|(other, _)| *other == place) {
                Some((_, account)) => then(account),
                None => return false,
            },
        }
        true
    }

    /// Decides by a single policy: as by several, without what those need.
    fn ask_one(&self, place: usize, request: &Parts, asked: &[BeforeHand]) -> Outcome {
        let NamedPolicy { policy, quotas, .. } = &self.policies[place];
        let mut outcome = Outcome::Pass(Stamp::default());
        self.open(place, request, asked, &mut |account| {
            let cost = policy.cost_of(request);
            let decided = account.check(cost);
            if let (Ok(decision), [told]) = (&decided, quotas.as_slice())
                && decision.is_allowed()
                && !policy.waits_for_answer()
            {
                self.count(place, Count::Allowed);
                outcome = Outcome::Pass(self.stamp_of_one(policy, account, told, *decision));
                return;
            }
            account.with(&mut |limit| {
                let node = Node { place, account, limit, cost, before: None };
                let ruling = Ruling::of(&[&node], decided);
                outcome = match ruling {
                    Some(ruling) if ruling.is_refusal() && !policy.is_dry_run => {
                        Outcome::Answer(self.refuse(request, &[&node], &[&node], &ruling))
                    }
                    ruling => {
                        let is_charged = self.try_out(request, &node, ruling);
                        Outcome::Pass(self.stamp_for(&[(&node, is_charged)]))
                    }
                };
            });
        });
        outcome
    }

    /// Finds the policies from the place `from` on that are for a request, and decides when there are no more.
    fn ask_all(&self, from: usize, request: &Parts, asked: &[BeforeHand], before: Option<&Node<'_>>) -> Outcome {
        let mut policies = self.policies.iter().enumerate().skip(from);
        let Some((place, NamedPolicy { policy, .. })) = policies.find(|(_, named)| named.policy.matches(request))
        else {
            return self.conclude(request, before);
        };
        let mut outcome = Outcome::Pass(Stamp::default());
        let is_open = self.open(place, request, asked, &mut |account| {
            account.with(&mut |limit| {
                let node = Node { place, account, limit, cost: policy.cost_of(request), before };
                outcome = self.ask_all(place + 1, request, asked, Some(&node));
            });
        });
        // It comes after one that refuses.
        if is_open { outcome } else { self.ask_all(place + 1, request, asked, before) }
    }

    fn conclude(&self, request: &Parts, last: Option<&Node<'_>>) -> Outcome {
        let mut nodes: Few<&Node<'_>> = std::iter::successors(last, |node| node.before).collect();
        nodes.reverse();
        let is_trial = |node: &&Node<'_>| self.policies[node.place].policy.is_dry_run;
        let enforced: Few<&Node<'_>> = nodes.iter().copied().filter(|node| !is_trial(node)).collect();
        if let Some(ruling) = Ruling::ask(&enforced) {
            if ruling.is_refusal() {
                return Outcome::Answer(self.refuse(request, &nodes, &enforced, &ruling));
            }
            enforced.iter().for_each(|node| self.count(node.place, Count::Allowed));
        }
        let charged = |node| (node, !is_trial(&node) || self.try_out(request, node, Ruling::ask(&[node])));
        let charged = nodes.into_iter().map(charged).collect::<Few<_>>();
        Outcome::Pass(self.stamp_for(&charged))
    }

    /// Tells what a policy on trial would have done; returns whether it would have let the request pass.
    fn try_out(&self, request: &Parts, node: &Node<'_>, ruling: Option<Ruling>) -> bool {
        let refused = ruling.filter(Ruling::is_refusal);
        if let Some(ruling) = &refused {
            self.count(node.place, Count::WouldRefuse);
            self.watch.refused(&self.refusal(&[node], ruling, true), request);
        } else {
            self.count(node.place, Count::Allowed);
        }
        refused.is_none()
    }

    fn count(&self, place: usize, count: Count) {
        let NamedPolicy { quotas, counters, .. } = &self.policies[place];
        counters.count(quotas.first().map_or("", |told| &told.name), count);
    }

    /// What the answer is to carry if a single quota was asked.
    fn stamp_of_one(&self, policy: &Policy<Asks>, account: &dyn Account, told: &Told, decision: Decision) -> Stamp {
        match account.quota(0) {
            Some(quota) if self.fields.is_any() && !policy.is_hidden => {
                let key = self.fields.partition_key.then(|| account.alias());
                Stamp::Fields(self.fields.tell(&[Standing { told, quota, decision, key }], None, None))
            }
            _ => Stamp::default(),
        }
    }

    /// What the answer to a request that has passed is to carry, by the policies that were asked and whether they took its
    /// cost.
    fn stamp_for(&self, nodes: &[(&Node<'_>, bool)]) -> Stamp {
        if nodes.iter().any(|(node, _)| self.policies[node.place].policy.waits_for_answer()) {
            let keep = |&(node, is_charged): &(&Node<'_>, bool)| {
                let (account, cost) = (node.account.keep(), node.cost);
                Kept { place: node.place, account, cost, is_charged }
            };
            return Stamp::Settle(nodes.iter().map(keep).collect());
        }
        if !self.fields.is_any() {
            return Stamp::default();
        }
        let standings: Few<Standing<'_>> =
            nodes.iter().flat_map(|(node, _)| self.standings(node.place, node.account, node.limit)).collect();
        Stamp::Fields(self.fields.tell(&standings, None, None))
    }

    /// How the quotas of a policy stand, if clients are told.
    fn standings<'a>(&'a self, place: usize, account: &dyn Account, limit: &dyn Limit) -> Few<Standing<'a>> {
        let NamedPolicy { policy, quotas, .. } = &self.policies[place];
        if policy.is_hidden {
            return Few::new();
        }
        let key = self.fields.partition_key.then(|| account.alias());
        let stand = |(index, (decision, told)): (usize, (Decision, &'a Told))| {
            let quota = account.quota(index).filter(|_| account.knows(index))?;
            Some(Standing { told, quota, decision, key })
        };
        peek_all(&[limit]).zip(quotas).enumerate().filter_map(stand).collect()
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
        for Kept { place, account, cost, .. } in kept.iter().filter(|kept| kept.is_charged) {
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
        let metered = |kept: Kept| Some((kept.account, self.policies[kept.place].policy.bytes_per_unit?));
        Meter::new(kept.into_iter().filter(|kept| kept.is_charged).filter_map(metered).collect())
    }

    fn refuse(&self, request: &Parts, nodes: &[&Node<'_>], enforced: &[&Node<'_>], ruling: &Ruling) -> Response<Bytes> {
        let refusing = enforced[ruling.node];
        self.count(refusing.place, Count::Refused);
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
        let name =
            |node: &Node<'_>, quota: usize| self.policies[node.place].quotas.get(quota).map(|told| told.name.as_str());
        let policy = name(refusing, ruling.quota).unwrap_or_default();
        let mut violated = Vec::new();
        for node in nodes {
            let short = |(quota, decision): (usize, Decision)| {
                let is_binding = node.place == refusing.place && quota == ruling.quota;
                (is_binding || decision.remaining() < node.cost).then(|| name(node, quota)).flatten()
            };
            violated.extend(node.quotas().enumerate().filter_map(short));
        }
        let (key, is_never) = (refusing.account.alias(), ruling.is_never);
        Refusal { policy, violated, decision: ruling.decision, key, is_never, is_dry_run }
    }
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
