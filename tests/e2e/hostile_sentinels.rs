//! Sentinels of an attacker, announced to the real ones by a client that may only PUBLISH.
//!
//! Redis and the three sentinels are real. The attacker has a client, up to six sentinels that name
//! a server of its own, and that server, which collects passwords and forges every reply. Each case
//! runs with a connection for each client and with shared connections, in front of one cluster.

use std::net::IpAddr;
use std::time::Duration;

use harness::{
    Certificates, Client, Cluster, Pointsman, PointsmanBuilder, TlsServer, alone, wait_until,
};

use crate::attacker::Attacker;
use crate::credentials::{acl, status};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "the-password-of-redis";
const SENTINEL_PASSWORD: &str = "the-password-of-sentinel";
/// The attacker's account may publish, and nothing else.
const PUBLISHER: &str = "publisher on >publisher resetkeys &* -@all +publish";
/// Once every hostile sentinel has been polled this often, the claim has stood for seconds.
const POLLS: usize = 8;
/// In the certificates of all servers of a cluster with TLS.
const TLS_NAME: &str = "redis.test";

/// A certificate of the attacker's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Authority {
    /// Issued by the authority of the deployment, as to any member of a mesh.
    Shared,
    Foreign,
}

/// How the proxy is configured.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// How many of the three sentinels are configured.
    configured: usize,
    /// The only one by a name.
    by_name: bool,
    hostile: usize,
    /// The epoch of the claim, above the true one.
    above: u64,
    sentinel_password: bool,
    tls: Option<Authority>,
}

const THREE: Case = Case {
    configured: 3,
    by_name: false,
    hostile: 4,
    above: 9,
    sentinel_password: false,
    tls: None,
};

/// A cluster, and the proxies in front of it.
struct Site {
    cluster: Cluster,
    /// How a client logs in.
    login: &'static [&'static str],
    proxies: Vec<Pointsman>,
}

/// One proxy with a connection for each client, and one with shared connections. By default a hello
/// would reach no server.
fn start_both<'a>(configure: impl Fn() -> PointsmanBuilder<'a>) -> Vec<Pointsman> {
    let start =
        |upstream: &str| configure().service_line("refuse = []").service_line(upstream).start();
    ["upstream = \"dedicated\"", "upstream = \"shared\""].map(start).into()
}

impl Site {
    fn new(case: Case) -> Self {
        let mut cluster = Cluster::builder().password(PASSWORD).user(PUBLISHER);
        if case.sentinel_password {
            cluster = cluster.sentinel_password(SENTINEL_PASSWORD);
        }
        if case.tls.is_some() {
            cluster = cluster.tls();
        }
        let cluster = cluster.start();
        let mut sentinels: Vec<String> =
            cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        sentinels.truncate(case.configured);
        let hosts = [(TLS_NAME, cluster.address().ip())];
        if case.by_name {
            sentinels = vec![format!("{TLS_NAME}:{}", cluster.sentinels()[0].addr().port())];
        }
        let tls = case.tls.map(|_| sections(&cluster)).unwrap_or_default();
        let proxies = start_both(|| {
            let builder = builder(&cluster).sentinels(&sentinels).lines(&tls);
            if case.by_name { builder.hosts(&hosts) } else { builder }
        });
        Self { login: &["AUTH", PASSWORD], proxies, cluster }
    }

    /// Every member has an address, and one name leads to all sentinels.
    fn apart() -> Self {
        let cluster = Cluster::builder().start_apart();
        let app = format!("app on >{PASSWORD} ~* &* +@all");
        let probe = format!("probe on >{PASSWORD} -@all +auth +ping +role +info +client|setname");
        for rules in [PUBLISHER, &app, &probe] {
            acl(cluster.nodes(), &rules.split(' ').collect::<Vec<_>>());
        }
        let addrs = cluster.sentinel_addrs();
        let hosts: Vec<(&str, IpAddr)> =
            addrs.iter().map(|it| ("sentinels.test", it.ip())).collect();
        let sentinels = [format!("sentinels.test:{}", addrs[0].port())];
        let auth = format!("[service.auth]\nusername = \"probe\"\npassword = \"{PASSWORD}\"");
        let proxies =
            start_both(|| builder(&cluster).sentinels(&sentinels).hosts(&hosts).lines(&auth));
        Self { login: &["AUTH", "app", PASSWORD], proxies, cluster }
    }

    fn log_in(&self, proxy: &Pointsman) -> Client {
        let mut client = proxy.client();
        assert!(client.cmd(self.login).expect("AUTH").is_ok());
        client
    }

    /// A write through each proxy reaches the true master, on a new and on an old connection.
    #[track_caller]
    fn writes(&self, old: &mut [Client], value: &str) {
        let master = self.cluster.master();
        for (proxy, old) in self.proxies.iter().zip(old) {
            for (key, client) in [("old", old), ("new", &mut self.log_in(proxy))] {
                let answer = client.cmd(&["SET", key, value]).expect("SET");
                assert!(answer.is_ok(), "{answer:?}");
                assert_eq!(master.ask(&["GET", key]).expect("GET").text(), Some(value));
            }
        }
    }

    /// The attacker's sentinels join, and name its server at a higher epoch for seconds. Nothing
    /// reaches the server; and the next failover is followed.
    fn withstands(&self, attacker: &Attacker, epoch: u64, polled: bool) {
        let mut old: Vec<Client> = self.proxies.iter().map(|it| self.log_in(it)).collect();
        self.writes(&mut old, "before");
        attacker.claims(epoch);
        attacker.announces(&self.cluster, &self.proxies[0]);
        let proxies: Vec<&Pointsman> = self.proxies.iter().collect();
        if polled {
            attacker.is_polled(POLLS, &proxies);
        } else {
            self.withholds_tls(&proxies);
        }
        self.writes(&mut old, "during");
        attacker.got_nothing();
        for proxy in proxies {
            let commits = metric(proxy, "pointsman_target_generation{service=\"mymaster\"}");
            assert_eq!(commits, Some(1.0), "{}", status(proxy));
        }
        let to = self.cluster.failover().to;
        for proxy in &self.proxies {
            wait_until("the new master to serve", PATIENCE, || {
                let answer = self.log_in(proxy).cmd(&["SET", "after", "it"]);
                answer.is_ok_and(|it| it.is_ok())
                    && self.cluster.node_at(to).is_some_and(|node| {
                        node.ask(&["GET", "after"]).is_ok_and(|it| it.text() == Some("it"))
                    })
            });
        }
        attacker.got_nothing();
    }

    /// Each proxy has tried the attacker's sentinels, and refused their certificates.
    fn withholds_tls(&self, proxies: &[&Pointsman]) {
        for proxy in proxies {
            wait_until("the foreign certificates to be refused", PATIENCE, || {
                let status = status(proxy);
                let sentinels = status["services"][0]["sentinels"].as_array().expect("rows");
                let refused = |it: &&serde_json::Value| it["tls_fault"].is_string();
                if sentinels.iter().any(|it| refused(&it)) {
                    Ok(())
                } else {
                    Err(status.to_string())
                }
            });
        }
    }
}

/// Both sections for TLS, with the cluster's authority and client certificate.
fn sections(cluster: &Cluster) -> String {
    let folder = cluster.folder().join("tls");
    let keys = format!(
        "enabled = true\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}\n",
        cluster.certificates().ca_file(),
        folder.join("client.crt"),
        folder.join("client.key")
    );
    format!("[service.redis_tls]\n{keys}[service.sentinel_tls]\n{keys}")
}

/// The certificate of the attacker's servers.
fn certificate(cluster: &Cluster, authority: Authority) -> TlsServer {
    let foreign = Certificates::new(&cluster.folder().join("foreign"));
    let authority = match authority {
        Authority::Shared => cluster.certificates(),
        Authority::Foreign => &foreign,
    };
    let names = [&cluster.address().ip().to_string(), "localhost", TLS_NAME];
    TlsServer::new(&authority.issue("hostile", &names))
}

fn attack(case: Case) {
    let site = Site::new(case);
    let tls = case.tls.map(|authority| certificate(&site.cluster, authority));
    let attacker = Attacker::new(site.cluster.address().ip(), case.hostile, tls);
    site.withstands(&attacker, case.above, case.tls != Some(Authority::Foreign));
}

#[test]
fn ignores_four_hostile_sentinels_at_a_higher_epoch() {
    attack(THREE);
}

#[test]
fn ignores_six_hostile_sentinels_beside_one_configured() {
    attack(Case { configured: 1, hostile: 6, ..THREE });
}

#[test]
fn ignores_hostile_sentinels_at_the_same_epoch() {
    attack(Case { hostile: 5, above: 0, ..THREE });
}

#[test]
fn ignores_one_hostile_sentinel() {
    attack(Case { configured: 1, hostile: 1, ..THREE });
}

#[test]
fn keeps_password_from_hostile_sentinels() {
    attack(Case { sentinel_password: true, ..THREE });
}

#[test]
fn ignores_hostile_sentinels_beside_one_name_over_tls() {
    attack(Case {
        configured: 1,
        by_name: true,
        hostile: 3,
        tls: Some(Authority::Shared),
        ..THREE
    });
}

#[test]
fn keeps_password_from_hostile_sentinels_over_tls() {
    attack(Case { hostile: 2, sentinel_password: true, tls: Some(Authority::Foreign), ..THREE });
}

#[test]
fn ignores_hostile_sentinels_beside_three_of_one_name() {
    if !alone("hostile_sentinels::ignores_hostile_sentinels_beside_three_of_one_name") {
        return;
    }
    let site = Site::apart();
    let attacker = Attacker::new(site.cluster.address().ip(), 6, None);
    site.withstands(&attacker, 9, true);
}
