//! The status page of a service whose clients share connections.

use std::path::Path;

use harness::{Cluster, Pointsman};

use crate::browser::Browser;
use crate::tab::{TWO, Tab, axe_source};

#[test]
fn shows_who_shares_connections_and_who_does_not() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = Pointsman::builder(env!("CARGO_BIN_EXE_pointsman"), &cluster)
        .service_line("upstream = \"shared\"")
        .lines("[process]\nworkers = 1")
        .start();
    let browser = Browser::start(cluster.folder());
    let tab = Tab::open(&browser, &format!("http://{}/", pointsman.admin()));
    let [mut plain, mut multi, mut subscriber] = [(); 3].map(|()| pointsman.client());
    for client in [&mut plain, &mut multi, &mut subscriber] {
        assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    }
    assert!(multi.cmd(&["MULTI"]).expect("MULTI").is_ok());
    assert_eq!(subscriber.cmd(&["SUBSCRIBE", "c"]).expect("SUBSCRIBE").items().len(), 3);
    let facts = "[...document.querySelectorAll('.facts div')].map(o => [o.firstChild.textContent, o.lastChild.textContent])";
    let is = |name: &str, value: &str| {
        tab.wait(
            &format!("{name}: {value}"),
            &format!("{facts}.some(([name, value]) => name === {name:?} && value === {value:?})"),
        );
    };
    is("Sharing", "1 session on 1 connection");
    is("Own connection", "2 sessions");
    is("Requests per write", "1");
    is("Got their own connection", "1 subscription, 1 transaction; 0 returned");
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&pictures).expect("a folder for the pictures");
    let axe = axe_source();
    for screen in TWO {
        tab.show_on(screen);
        let wide = tab.eval("document.documentElement.scrollWidth");
        assert!(wide.as_u64() <= Some(u64::from(screen.width)), "{wide} pixels on {screen:?}");
        tab.picture(&pictures, "sharing", screen);
        assert_eq!(tab.accessibility_violations(&axe), Vec::<String>::new());
    }
    assert_eq!(tab.console_errors(), Vec::<String>::new());
    drop((plain, multi, subscriber));
}
