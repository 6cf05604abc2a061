//! The cost of the data plane from socket to socket: a request and its reply, a pipeline of a
//! hundred, a value of 1 MiB.
//!
//! Run with `cargo bench -p pointsman-proxy`. A client and a backend in this process talk through a
//! real proxy over loopback, and each case also runs without the proxy: the relevant figure is the
//! difference. Most of it is spent in the kernel.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use drain::{Drain, ShutdownSettings};
use proxy::{AddressPlan, NoHints, Options, Running, Service};
use target::{Destination, TargetWriter};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n";

fn value(len: usize) -> Vec<u8> {
    [format!("${len}\r\n").as_bytes(), &vec![b'x'; len], b"\r\n"].concat()
}

/// Answers every `request` bytes of a connection with `reply` until it is closed.
fn backend(request: usize, reply: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let reply = Arc::new(reply);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let reply = Arc::clone(&reply);
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut buffer = vec![0; request];
                while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&reply).is_ok() {}
            });
        }
    });
    addr
}

/// A proxy in front of `target`. It runs until the process ends.
fn proxy(target: SocketAddr) -> (SocketAddr, TargetWriter, Drain, Running) {
    let (mut writer, reader) = TargetWriter::new();
    writer.commit(Destination { addr: target, name: "bench".into(), epoch: 0, run_id: None });
    let options = Options::default().into();
    let service =
        Service { name: "bench".into(), route: reader.into(), options, hints: Arc::new(NoHints) };
    let plan = AddressPlan::new(NonZeroUsize::MIN, &[], Vec::new());
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = plan.bind(any, &service.options.now()).unwrap();
    let addr = listener.addr.tcp().unwrap();
    let (drain, _controller) = drain::new(ShutdownSettings::default());
    let mut running = Running::start(NonZeroUsize::MIN, 100, &drain).unwrap();
    let number = running.add_service(service);
    running.open(number, listener, false);
    (addr, writer, drain, running)
}

fn exchange(c: &mut Criterion, name: &str, request: &[u8], reply: &[u8]) {
    let target = backend(request.len(), reply.to_vec());
    let (through, ..) = &proxy(target);
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes((request.len() + reply.len()) as u64));
    for (path, addr) in [("direct", target), ("proxied", *through)] {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut buffer = vec![0; reply.len()];
        group.bench_function(path, |b| {
            b.iter(|| {
                stream.write_all(request).unwrap();
                stream.read_exact(&mut buffer).unwrap();
            });
        });
        assert!(buffer == reply, "{name}");
    }
    group.finish();
}

fn exchanges(c: &mut Criterion) {
    exchange(c, "one request", GET, &value(64));
    exchange(c, "pipeline of 100", &GET.repeat(100), &value(64).repeat(100));
    exchange(c, "value of 1 MiB", GET, &value(1 << 20));
}

criterion_group!(benches, exchanges);
criterion_main!(benches);
