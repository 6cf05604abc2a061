//! The status page over HTTPS.

use harness::{Authority, Cluster, Pointsman};

use crate::browser::Browser;
use crate::tab::Tab;

#[test]
fn shows_status_page_over_https() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let name = cluster.address().ip().to_string();
    let files = Authority::new("Test CA").issue(&[&name]).write(&cluster.folder().join("tls"));
    let section =
        format!("[admin.tls]\ncertificate_file = {:?}\nkey_file = {:?}", files.chain, files.key);
    let program = env!("CARGO_BIN_EXE_pointsman");
    let pointsman = Pointsman::builder(program, &cluster).lines(&section).start();
    let browser = Browser::start(cluster.folder());
    let origin = format!("https://{}/", pointsman.admin());
    let tab = Tab::open(&browser, &origin);
    tab.wait("the service", "document.body.innerText.includes('mymaster')");
    // It loads the status every second.
    let loaded = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/status'))";
    tab.wait("three loads of the status", &format!("{loaded}.length >= 3"));
    let requests = tab.requests();
    assert!(requests.iter().all(|it| it.starts_with(&origin)), "{requests:?}");
    assert_eq!(tab.console_errors(), Vec::<String>::new());
}
