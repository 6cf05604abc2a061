//! Tests the files of a release: the image is unpacked and its program started in a root folder
//! with nothing else, as the image's user, in front of a real sentinel that is found by /etc/hosts
//! or DNS; the Debian package is unpacked, started, and checked by lintian.
//!
//! Name lookups are the most likely fault of a static program: its C library must resolve names
//! without the files of a system. So a name server answers here, on a loopback address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{Client, Cluster, Launch, Process, wait_until};
use serde_json::Value;
use setup::{files, run};

use super::Dist;

const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 53, 153);
const PATIENCE: Duration = Duration::from_secs(30);

/// Tests the image in an empty root folder.
pub(super) fn image(dist: &Dist, archive: &Path) -> Result<String, String> {
    let emulator =
        if dist.is_native() { None } else { harness::find_in_path("qemu-aarch64-static") };
    if !rustix::process::geteuid().is_root() || (emulator.is_none() && !dist.is_native()) {
        return Ok(
            "not tried: that takes root, and for another architecture qemu-user-static".to_owned()
        );
    }
    let temp = files::temporary()?;
    let (oci, root) = (temp.path().join("oci"), temp.path().join("root"));
    for folder in [&oci, &root] {
        files::make(folder)?;
    }
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&oci))?;
    let blob = |digest: &Value| {
        oci.join("blobs/sha256")
            .join(digest.as_str().unwrap_or_default().trim_start_matches("sha256:"))
    };
    let read = |path: &Path| -> Result<Value, String> {
        let text = files::read(path)?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    let manifest = read(&blob(&read(&oci.join("index.json"))?["manifests"][0]["digest"]))?;
    let config = read(&blob(&manifest["config"]["digest"]))?["config"].clone();
    if config["User"] != "65532:65532"
        || config["Entrypoint"][0] != "/pointsman"
        || !config["StopSignal"].is_null()
        || !config["Env"].to_string().contains("\"POINTSMAN_DEFAULT_ADMIN=0.0.0.0:8888\"")
    {
        return Err(format!("the image's configuration is {config}"));
    }
    let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
    for layer in &layers {
        run(Command::new("tar").arg("-xzf").arg(blob(&layer["digest"])).arg("-C").arg(&root))?;
    }
    let listed = run(Command::new("find").args([".", "-mindepth", "1"]).current_dir(&root))?;
    if layers.len() != 1 || listed.trim() != "./pointsman" {
        return Err(format!("{} layers, and in them:\n{listed}", layers.len()));
    }
    if let Some(emulator) = &emulator {
        files::copy(emulator, root.join("emulator"))?;
    }
    started(&root, emulator.is_some())?;
    let how = if emulator.is_some() { " (emulated)" } else { "" };
    Ok(format!(
        "one file; proxies in a root folder of its own{how}, with names from /etc/hosts and by DNS"
    ))
}

fn started(root: &Path, is_emulated: bool) -> Result<(), String> {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let sentinel = *cluster.sentinel_addrs().first().ok_or("no sentinel")?;
    let IpAddr::V4(ip) = sentinel.ip() else {
        return Err("the sentinel has no IPv4 address".to_owned());
    };
    let write = |name: &str, text: String| files::write(root.join(name), text);
    files::make(root.join("etc"))?;
    write("etc/hosts", format!("{ip} by-hosts.test\n"))?;
    write("etc/resolv.conf", format!("nameserver {NAME_SERVER}\noptions timeout:2 attempts:2\n"))?;
    files::permit(root, 0o755)?;
    name_server(ip)?;
    for host in ["by-hosts.test", "by-dns.test"] {
        let (listen, admin) = (cluster.address().port(), cluster.address().port());
        let target = format!("{host}:{}", sentinel.port());
        let mut args =
            vec!["--userspec=65532:65532".to_owned(), root.to_string_lossy().into_owned()];
        args.extend(is_emulated.then(|| "/emulator".to_owned()));
        args.extend(["/pointsman", "run", "--sentinel", &target, "--listen"].map(str::to_owned));
        args.extend([listen.to_string(), "--admin".to_owned(), admin.to_string()]);
        let args = args.into_iter().map(Into::into).collect();
        let folder = cluster.folder().to_owned();
        let launch = Launch {
            name: host.to_owned(),
            program: "/usr/sbin/chroot".into(),
            args,
            env: Vec::new(),
            folder,
        };
        let process = Process::start(&launch);
        serves(&process, listen, admin);
    }
    Ok(())
}

fn serves(process: &Process, listen: SocketAddr, admin: SocketAddr) {
    wait_until("the program of the image to be ready", PATIENCE, || {
        assert!(process.is_running(), "it ended: {}", process.tail());
        bench::metrics::get(admin, "/ready")
    });
    let pong = Client::connect(listen).and_then(|mut client| client.cmd(&["PING"]));
    assert!(pong.as_ref().is_ok_and(|pong| pong.text() == Some("PONG")), "{pong:?}");
}

/// Answers every query for an IPv4 address with `ip`, for as long as the process lives.
fn name_server(ip: Ipv4Addr) -> Result<(), String> {
    let socket = UdpSocket::bind((NAME_SERVER, 53))
        .map_err(|error| format!("a name server cannot listen: {error}"))?;
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = buffer.get(..length).and_then(|question| answer(question, ip)) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(())
}

/// The response to a query for one name (RFC 1035, section 4): its address for type A, no record
/// for other types.
fn answer(question: &[u8], ip: Ipv4Addr) -> Option<Vec<u8>> {
    let mut end = 12;
    while *question.get(end)? != 0 {
        end += usize::from(*question.get(end)?) + 1;
    }
    let end = end + 5;
    let is_a = question.get(end - 4..end)? == [0, 1, 0, 1];
    let mut answer = question.get(..2)?.to_vec();
    // A response, recursion available; one question, and one answer or none.
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    answer.extend(question.get(12..end)?);
    if is_a {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(ip.octets());
    }
    Some(answer)
}

/// The files that the package must contain.
const BROUGHT: &[&str] = &[
    "etc/pointsman/pointsman.toml",
    "usr/bin/pointsman",
    "usr/lib/sysusers.d/pointsman.conf",
    "usr/share/bash-completion/completions/pointsman",
    "usr/share/doc/pointsman/copyright",
    "usr/share/man/man1/pointsman.1.gz",
];

/// Tests the Debian package: its files, its start, and the findings of lintian.
pub(super) fn deb(dist: &Dist, file: &Path) -> Result<String, String> {
    let temp = files::temporary()?;
    run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(temp.path()))?;
    for path in BROUGHT {
        if !temp.path().join(path).is_file() {
            return Err(format!("the package brings no {path}"));
        }
    }
    if dist.is_native() {
        let program = temp.path().join("usr/bin/pointsman");
        let config = temp.path().join("etc/pointsman/pointsman.toml");
        run(Command::new(program).args(["check", "--config"]).arg(config).env_clear())?;
    }
    run(Command::new("lintian")
        .args(["--fail-on", "error,warning", "--allow-root", "--no-tag-display-limit"])
        .arg(file))?;
    Ok("lintian has no objection".to_owned())
}

/// Errors of rpmlint that are expected: distributors sign packages, and the configuration may hold
/// passwords.
const ALLOWED: &[&str] = &["no-signature", "non-standard-dir-perm /etc/pointsman 750"];

/// Tests the rpm package: its files and the findings of rpmlint.
pub(super) fn rpm(file: &Path) -> Result<String, String> {
    let listed = run(Command::new("rpm").args(["--query", "--list", "--package"]).arg(file))?;
    let mut needed = BROUGHT.iter().filter(|path| !path.ends_with("copyright"));
    let is_listed =
        |path: &&&str| listed.lines().any(|line| line.trim_start_matches('/') == **path);
    if let Some(path) = needed.find(|path| !is_listed(path)) {
        return Err(format!("the package brings no {path}:\n{listed}"));
    }
    // It fails even if all its findings are expected.
    let said = run(Command::new("sh").args(["-c", "rpmlint \"$1\" 2>&1 || true", "sh"]).arg(file))?;
    let objections: Vec<&str> = said
        .lines()
        .filter(|line| {
            line.contains(": E: ") && !ALLOWED.iter().any(|allowed| line.ends_with(allowed))
        })
        .collect();
    if !said.contains("1 packages") || !objections.is_empty() {
        return Err(format!("rpmlint: {said}"));
    }
    Ok(format!("{} files; rpmlint has no objection", listed.lines().count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_only_address_queries() {
        let question = |kind: u8| {
            let head = [0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            [&head[..], b"\x07by-dns\x2d\x04test\x00", &[0, kind, 0, 1]].concat()
        };
        let ip = Ipv4Addr::new(127, 9, 8, 7);
        let address = answer(&question(1), ip).unwrap();
        assert_eq!(
            (&address[..8], &address[address.len() - 4..]),
            (&[0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1][..], &[127, 9, 8, 7][..])
        );
        let none = answer(&question(28), ip).unwrap();
        assert_eq!((none[7], none.len()), (0, question(28).len()));
        for cut in 0..question(1).len() {
            assert_eq!(answer(&question(1)[..cut], ip), None, "{cut}");
        }
    }
}
