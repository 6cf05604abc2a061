//! The accept loop before a listener that fails as the system rarely does: out of descriptors everywhere, out of memory, and
//! with clients that are gone before they are taken.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use drain::Order;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::entrance::{Accept, serve};
use crate::testing::seat;

/// Fails as told, then gives the clients of a real listener.
struct Faulty {
    faults: Mutex<VecDeque<Errno>>,
    tried: Arc<AtomicUsize>,
    then: TcpListener,
}

impl Accept for Faulty {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match fault {
            Some(errno) => Err(errno.into()),
            None => self.then.accept().await,
        }
    }

    fn into_std(self) -> io::Result<std::net::TcpListener> {
        self.then.into_std()
    }
}

/// Lets a client in behind these faults, and returns how often was tried, how long it took by the test's clock, and the
/// counted failures.
async fn behind(faults: &[Errno]) -> (usize, Duration, u64) {
    let (_points, seat) = seat();
    let seat = Arc::new(seat);
    let then = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = then.local_addr().unwrap();
    let tried = Arc::new(AtomicUsize::new(0));
    let faulty = Faulty { faults: Mutex::new(faults.iter().copied().collect()), tried: Arc::clone(&tried), then };
    let serving = tokio::spawn(serve(faulty, Arc::clone(&seat), seat.drain.door()));
    let _client = std::net::TcpStream::connect(addr).unwrap();
    let begin = Instant::now();
    while seat.block.accepted() == 0 {
        // Real sockets and a clock that jumps: a turn for the one, a step for the other.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(begin.elapsed() < Duration::from_secs(60), "nobody was let in");
    }
    let took = begin.elapsed();
    seat.drain.order(Order::Cut);
    serving.abort();
    (tried.load(Ordering::Relaxed), took, seat.block.accept_errors())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_aborted_in_the_queue_holds_up_nobody() {
    let (tried, took, errors) = behind(&[Errno::CONNABORTED; 50]).await;
    assert!(tried >= 51 && errors == 50, "{tried} {errors}");
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn out_of_descriptors_or_memory_it_pauses_longer_and_longer_and_goes_on() {
    for errno in [Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::MFILE] {
        let (tried, took, errors) = behind(&[errno; 8]).await;
        // 5 + 10 + 20 + 40 + 80 + 160 + 320 + 500 ms, and no more attempts than failures and one success or two.
        assert!((9..=10).contains(&tried) && errors == 8, "{errno:?}: {tried} {errors}");
        assert!(took >= Duration::from_millis(1135) && took < Duration::from_millis(1500), "{errno:?}: {took:?}");
    }
}
