//! A group of sentinels: those that the same part of the file names together.

use std::collections::BTreeSet;

use crate::sections::Directive;

/// Sentinels that are named together.
#[derive(Debug, Clone, Default)]
pub(super) struct SentinelGroup<'a> {
    /// As `host:port`, without repetition.
    pub(super) endpoints: Vec<String>,
    pub(super) hosts: BTreeSet<String>,
    pub(super) lines: Vec<&'a Directive>,
}

impl<'a> SentinelGroup<'a> {
    pub(super) fn add(&mut self, host: &str, endpoint: String, line: &'a Directive) {
        self.add_endpoint(endpoint);
        self.hosts.insert(host.to_ascii_lowercase());
        self.lines.push(line);
    }

    fn add_endpoint(&mut self, endpoint: String) {
        if !self.endpoints.contains(&endpoint) {
            self.endpoints.push(endpoint);
        }
    }

    fn extend(&mut self, other: &Self) {
        other.endpoints.iter().for_each(|it| self.add_endpoint(it.clone()));
        self.hosts.extend(other.hosts.iter().cloned());
        self.lines.extend(&other.lines);
    }

    fn shares(&self, other: &Self) -> bool {
        other.endpoints.iter().any(|endpoint| self.endpoints.contains(endpoint))
    }
}

/// Joins groups with a sentinel in common; each of the results may be another installation.
pub(super) fn join(found: Vec<SentinelGroup<'_>>) -> Vec<SentinelGroup<'_>> {
    let mut groups: Vec<SentinelGroup<'_>> = Vec::new();
    for group in found.into_iter().filter(|group| !group.endpoints.is_empty()) {
        // A group may join several earlier ones.
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|known| known.shares(&group));
        groups = apart;
        let mut all = SentinelGroup::default();
        joined.iter().chain([&group]).for_each(|known| all.extend(known));
        groups.push(all);
    }
    groups
}
