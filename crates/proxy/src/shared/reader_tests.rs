//! Readers of a replica pool that share connections.

use target::EmptyPool;

use crate::shared::shared_tests::{exchange, get, options, sharing};
use crate::testing::{Backend, TestProxy, destination};

/// Sessions of the same state share a connection only if they read from the same replica.
#[test]
fn shares_no_connection_between_replicas() {
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options());
    let backends = [Backend::new(), Backend::new()];
    let [one, other] = backends.each_ref().map(|it| destination(it.addr()));
    writer.publish(vec![one.clone()]);
    let (mut first, mut of_first) = sharing(&proxy, &backends[0]);
    writer.publish(vec![one, other]);
    let (mut second, mut of_second) = sharing(&proxy, &backends[1]);
    exchange(&mut first, &mut of_first, &get("k"), b"$1\r\n1\r\n");
    exchange(&mut second, &mut of_second, &get("k"), b"$1\r\n2\r\n");
    let stats = proxy.stats().shared;
    assert_eq!((stats.sessions, stats.connections), (2, 2));
}
