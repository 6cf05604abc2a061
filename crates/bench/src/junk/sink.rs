//! A server that does nothing: it accepts, reads once and closes.
//!
//! Junk that goes there costs the machine what the generator of it costs, and no proxy anything.

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use super::give_way;
use crate::cores::pin;

/// How long it waits for the first bytes.
const GLANCE: Duration = Duration::from_millis(1);

/// Starts it on a core, until the process ends.
///
/// # Errors
/// There is no port or thread for it.
pub(super) fn start(ip: IpAddr, core: usize) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((ip, 0))?;
    let addr = listener.local_addr()?;
    thread::Builder::new().name("sink".to_owned()).spawn(move || {
        // It only measures worse elsewhere.
        let _pinned = pin(core);
        let _low = give_way();
        let mut buffer = vec![0; 64 << 10];
        for mut stream in listener.incoming().flatten() {
            let _set = stream.set_read_timeout(Some(GLANCE));
            let _read = stream.read(&mut buffer);
        }
    })?;
    Ok(addr)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn reads_and_closes() {
        let addr = start(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        for bytes in [b"junk".as_slice(), b""] {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.write_all(bytes).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        }
    }
}
