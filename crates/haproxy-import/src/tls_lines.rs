//! The lines with TLS, and how `--allow-plaintext` gives it up, line by line.

use crate::Position;
use crate::config_file::Directive;
use crate::plan::{Plan, Planner};
use crate::proxies;
use crate::report::LineOutcome;

const CLIENTS: &str = "clients have to connect without TLS";
const SERVERS: &str =
    "Redis and Sentinel are reached without TLS, so they need a plaintext port (not `port 0`)";

impl Planner<'_> {
    /// Converts every line with TLS of the services and the admin server to plain text, and lists
    /// it.
    pub(super) fn drop_tls(&mut self, plan: &mut Plan) {
        let mut found: Vec<(Position, &'static str)> = Vec::new();
        let listeners = self.proxies.listeners.iter().map(|it| it.section);
        for section in listeners.chain(self.proxies.admin.iter().map(|(section, _)| *section)) {
            let binds = proxies::lines(self.config, section, "bind");
            found.extend(binds.filter(|it| it.has("ssl")).map(|it| (it.position.clone(), CLIENTS)));
        }
        for section in self.proxies.serving() {
            found.extend(
                self.tls_to_servers(section).into_iter().map(|position| (position, SERVERS)),
            );
        }
        found.sort();
        found.dedup();
        for (position, loss) in found {
            let Some(directive) = self.config.at(&position) else { continue };
            let note = format!("TLS is dropped because of --allow-plaintext: {loss}");
            self.notes.replace(directive, LineOutcome::Unmatched, &note);
            plan.plaintext.push((position, loss));
        }
    }

    /// Lines that make haproxy speak TLS with the servers of a backend, in traffic or in checks.
    fn tls_to_servers(&self, section: usize) -> Vec<Position> {
        let mut found: Vec<Position> =
            self.proxies.checks.get(section).map(|check| check.tls.clone()).unwrap_or_default();
        let has_tls = |it: &Directive| it.has("ssl") || it.has("check-ssl");
        let defaults = || self.config.default_servers(section).filter(|it| has_tls(it));
        for server in proxies::servers(self.config, section) {
            if has_tls(server.directive) {
                found.push(server.directive.position.clone());
            } else if !server.directive.has("no-ssl") {
                found.extend(defaults().map(|it| it.position.clone()));
            }
        }
        found
    }
}
