//! The configuration files of all peers, as text. Each follows the peer's documentation for a plain
//! TCP (or Redis) proxy with one thread; only limits and idle timeouts that would affect the
//! measurement are raised.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::Peer;

/// Connections that every peer is configured for.
const CONNECTIONS: usize = 4000;

/// The listen address of a peer and its target.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    /// Sentinel's name of the target.
    pub(crate) name: &'static str,
    pub(crate) listen: SocketAddr,
    /// The listen address for TLS, of pointsman and haproxy.
    pub(crate) secured: SocketAddr,
    pub(crate) target: SocketAddr,
}

/// Further addresses and folders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    /// The sentinel for pointsman.
    pub(crate) sentinel: SocketAddr,
    /// The admin or statistics address.
    pub(crate) admin: SocketAddr,
    /// The certificate and its key, in one file.
    pub(crate) certificate: &'a Path,
    /// The folder that the peer was unpacked into.
    pub(crate) root: &'a Path,
    /// The folder for its output.
    pub(crate) folder: &'a Path,
}

/// The file name, its text, and the arguments of the program, in which `FILE` stands for the path.
pub(crate) fn configuration(
    peer: Peer,
    routes: &[Route],
    around: &Around<'_>,
) -> (&'static str, String, Vec<String>) {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    match peer {
        Peer::Direct => ("none", String::new(), Vec::new()),
        Peer::Pointsman
        | Peer::PointsmanShared
        | Peer::PointsmanDurable
        | Peer::PointsmanSharedDurable => {
            let text = pointsman(routes, around, service_lines(peer));
            ("pointsman.toml", text, words("run --config FILE"))
        }
        Peer::Baseline => {
            let pairs = routes
                .iter()
                .flat_map(|route| [route.listen.to_string(), route.target.to_string()]);
            ("none", String::new(), pairs.collect())
        }
        Peer::Haproxy3 | Peer::Haproxy3Buffers | Peer::Haproxy3Splice => {
            let tuned = |tuning, line| if peer == tuning { line } else { "" };
            let global = tuned(Peer::Haproxy3Buffers, "  tune.bufsize 65536\n");
            let defaults = tuned(Peer::Haproxy3Splice, "  option splice-auto\n");
            ("haproxy.cfg", haproxy(routes, around, global, defaults), words("-db -f FILE"))
        }
        Peer::Nginx => {
            let args = format!("-e stderr -p {} -c FILE", around.folder.display());
            ("nginx.conf", nginx(routes, around.root), words(&args))
        }
        Peer::Twemproxy => {
            let (ip, port) = (around.admin.ip(), around.admin.port());
            let log = around.folder.join("log").display().to_string();
            (
                "nutcracker.yml",
                twemproxy(routes),
                words(&format!("-c FILE -a {ip} -s {port} -v 4 -o {log}")),
            )
        }
    }
}

/// What the services of a pointsman have besides.
fn service_lines(peer: Peer) -> &'static str {
    match peer {
        Peer::PointsmanShared => "upstream = \"shared\"\n",
        // Replicas are connected: writes do not wait longer for them at the start.
        Peer::PointsmanDurable => "hold_timeout = \"1s\"\ndurability.replicas = 1\n",
        Peer::PointsmanSharedDurable => {
            "upstream = \"shared\"\nhold_timeout = \"1s\"\ndurability.replicas = 1\n"
        }
        _ => "",
    }
}

fn pointsman(routes: &[Route], around: &Around<'_>, service: &str) -> String {
    let mut text = String::new();
    for Route { name, listen, secured, .. } in routes {
        let (sentinel, certificate) = (around.sentinel, around.certificate);
        let _ = writeln!(
            text,
            "[[service]]\nname = {name:?}\nlisten = [\"{listen}\"]\ntls_listen = [\"{secured}\"]\n\
             sentinels = [\"{sentinel}\"]\n{service}[service.tls]\n\
             certificate_files = [{certificate:?}]"
        );
    }
    let _ = writeln!(text, "[admin]\nlisten = [\"{}\"]", around.admin);
    // Each service gets an equal share.
    let _ = writeln!(text, "[process]\nworkers = 1\nmax_connections = {}", 2 * CONNECTIONS);
    text
}

fn haproxy(routes: &[Route], around: &Around<'_>, global: &str, defaults: &str) -> String {
    let mut text = format!(
        "global\n  nbthread 1\n  maxconn {CONNECTIONS}\n{global}defaults\n  mode tcp\n  timeout connect 5s\n\
         \x20 timeout client 1h\n  timeout server 1h\n  maxconn {CONNECTIONS}\n{defaults}"
    );
    let certificate = around.certificate.display();
    for Route { name, listen, secured, target } in routes {
        let _ = writeln!(
            text,
            "listen {name}\n  bind {listen}\n  bind {secured} ssl crt {certificate}\n  \
             server {name} {target}"
        );
    }
    text
}

fn nginx(routes: &[Route], root: &Path) -> String {
    let module = root.join("usr/lib/nginx/modules/ngx_stream_module.so");
    let mut text = format!(
        "load_module {};\ndaemon off;\nmaster_process off;\npid nginx.pid;\n\
         events {{ worker_connections {}; }}\nstream {{\n",
        module.display(),
        2 * CONNECTIONS
    );
    for Route { listen, target, .. } in routes {
        let _ = writeln!(
            text,
            "  server {{ listen {listen}; proxy_pass {target}; proxy_timeout 1h; }}"
        );
    }
    text.push_str("}\n");
    text
}

fn twemproxy(routes: &[Route]) -> String {
    routes.iter().fold(String::new(), |mut text, Route { name, listen, target, .. }| {
        let _ = writeln!(
            text,
            "{name}:\n  listen: {listen}\n  hash: fnv1a_64\n  distribution: ketama\n  redis: true\n  servers:\n   - {target}:1"
        );
        text
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn configures_every_peer_with_one_thread() {
        let addr = |port: u16| SocketAddr::from(([127, 1, 2, 3], port));
        let routes = [
            Route { name: "redis", listen: addr(1001), secured: addr(3001), target: addr(2001) },
            Route { name: "sink", listen: addr(1002), secured: addr(3002), target: addr(2002) },
        ];
        let folder = Path::new("/folder");
        let (sentinel, admin) = (addr(26379), addr(8888));
        let (certificate, root) = (Path::new("/folder/both.pem"), Path::new("/root"));
        let around = Around { sentinel, admin, certificate, root, folder };
        for peer in Peer::value_variants().iter().copied().skip(1) {
            let (file, text, args) = configuration(peer, &routes, &around);
            if peer == Peer::Baseline {
                assert_eq!(
                    args.join(" "),
                    "127.1.2.3:1001 127.1.2.3:2001 127.1.2.3:1002 127.1.2.3:2002"
                );
                continue;
            }
            assert!(!file.is_empty() && args.iter().any(|arg| arg == "FILE"), "{peer:?}");
            for port in ["1001", "1002"] {
                assert_eq!(text.matches(port).count(), 1, "{peer:?}: {port} in\n{text}");
            }
            let speaks_tls = text.contains("3001") && text.contains("both.pem");
            assert_eq!(speaks_tls, !matches!(peer, Peer::Nginx | Peer::Twemproxy));
            if args.iter().any(|arg| arg == "run") {
                assert_eq!(text.matches("127.1.2.3:26379").count(), 2, "{text}");
                assert!(text.contains("workers = 1\n"));
            } else {
                assert!(text.contains("2001") && text.contains("2002"), "{peer:?}\n{text}");
            }
        }
        let of = |peer| configuration(peer, &routes, &around).1;
        assert!(of(Peer::Haproxy3).contains("nbthread 1"));
        assert!(!of(Peer::Haproxy3).contains("tune.bufsize"));
        assert!(of(Peer::Haproxy3Buffers).contains("tune.bufsize 65536"));
        assert!(of(Peer::Haproxy3Splice).contains("option splice-auto"));
    }
}
