//! Import of a haproxy configuration that ends TLS, as Argo CD's high-availability installation has
//! it, with a client that connects as Argo CD does.

use harness::{Authority, Client, Cluster, Tls};

use crate::import::{PATIENCE, exchanged, reads, serves_client, started, wait_ready};

/// Argo CD with `--redis-use-tls` verifies the name of the Service by `--redis-ca-certificate`. Its
/// haproxy ends TLS, with one file for certificate and key.
#[test]
fn serves_argo_cd_with_tls() {
    const SERVICE: &str = "argocd-redis-ha-haproxy";
    let cluster = Cluster::builder().masters(&["argocd"]).replicas(1).start();
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let [listen, readers, admin] = [(); 3].map(|()| cluster.address().port());
    let authority = Authority::new("argocd-redis");
    let issued = authority.issue(&[SERVICE, &format!("{SERVICE}.argocd.svc.cluster.local")]);
    let pem = cluster.folder().join("redis.pem");
    std::fs::write(&pem, format!("{}{}", issued.chain, issued.key)).expect("a file");
    let addresses = [
        ("bind :6379 ssl", format!("bind {listen} ssl")),
        (":6380", readers.to_string()),
        (":8888", admin.to_string()),
        ("certs/redis.pem", pem.to_str().expect("UTF-8").to_owned()),
        ("mymaster", "argocd".to_owned()),
        ("redis-announce-0:26379", sentinels[0].clone()),
        ("redis-announce-1:26379", sentinels[1].clone()),
    ];
    let text = exchanged("tls-redis-ha", &addresses);
    let (process, said) = started(&cluster, "argo-cd-tls", &text, &[]);
    wait_ready(&process, admin);
    assert!(said.contains(" 0 without counterpart"), "{said}");
    let connect = |authority: &Authority, name: &str| {
        Client::connect_tls(listen, &Tls::new(authority, name), PATIENCE)
    };
    serves_client(connect(&authority, SERVICE).expect("a connection"), None);
    connect(&authority, "redis.example").expect_err("another name");
    connect(&Authority::new("another"), SERVICE).expect_err("another authority");
    // Without TLS the client is told why, and the readers' port has none, as before.
    let mut plain = Client::connect(listen).expect("a connection");
    let refused = plain.cmd(&["PING"]).expect("a reply");
    assert!(refused.is_error(), "{refused:?}");
    reads(readers, None, admin, "argocd");
}
