//! Lines for systemd's journal, in its own protocol, so that `journalctl` knows level and fields.
//!
//! The protocol (systemd's "Native Journal Protocol") is a datagram of `NAME=value` lines to a
//! socket of the system's. It is written here and not by a crate because those that exist send from
//! the thread that logs: a journal that hangs would hold up a worker. A line goes through the same
//! bounded queue as any other, and the thread behind it sends.
//!
//! Deliberately absent: lines larger than a datagram, which the protocol would want in a memory
//! file. Values are cut instead.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::writer::{Lines, Sink};

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value of a field, in bytes.
const LONGEST: usize = 4096;

/// Whether the standard output leads to the journal: systemd says so by the device and the number
/// of the stream.
pub(super) fn is_ours(variable: Option<&str>) -> bool {
    let Some((device, inode)) = variable.and_then(|text| text.split_once(':')) else {
        return false;
    };
    let same = |stat: rustix::fs::Stat| {
        (device.parse() == Ok(stat.st_dev)) && (inode.parse() == Ok(stat.st_ino))
    };
    fstat(io::stdout()).is_ok_and(same)
}

/// Sends datagrams, from the log's own thread.
#[derive(Debug)]
pub(super) struct Sender {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Sender {
    /// To the system's journal; `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        let path = Path::new(SOCKET);
        let path = path.exists().then(|| path.to_owned())?;
        Self::to(path)
    }

    fn to(path: PathBuf) -> Option<Self> {
        Some(Self { socket: UnixDatagram::unbound().ok()?, path })
    }
}

impl Sink for Sender {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        // By address each time, so that a journal that was restarted is found again.
        self.socket.send_to(line, &self.path).map(drop)
    }
}

/// Makes a datagram of each event and puts it into the queue.
#[derive(Debug)]
pub(super) struct Journal(pub(super) Lines);

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // The queue drops what does not fit, and counts it.
        let _ = self.0.clone().write_all(&datagram(event));
    }
}

fn datagram(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut entry = Entry::default();
    event.record(&mut entry);
    let mut message = std::mem::take(&mut entry.message);
    message.push_str(&entry.pairs);
    // syslog(3): what needs a person, what may soon, what one wants to read, and the rest.
    let priority = match *metadata.level() {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    };
    entry.put("MESSAGE", &message);
    entry.put("PRIORITY", priority);
    entry.put("SYSLOG_IDENTIFIER", "pointsman");
    entry.put("POINTSMAN_MODULE", metadata.target());
    entry.bytes
}

/// What is gathered of an event.
#[derive(Default)]
struct Entry {
    bytes: Vec<u8>,
    message: String,
    /// The fields once more, for whoever reads the message alone.
    pairs: String,
}

impl Entry {
    fn put(&mut self, name: &str, value: &str) {
        let value = cut(value);
        self.bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            // Then the length comes first, as eight bytes.
            self.bytes.push(b'\n');
            self.bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(b'\n');
    }

    fn field(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
            return;
        }
        let _ = write!(self.pairs, " {}={}", field.name(), cut(value));
        self.put(&format!("POINTSMAN_{}", name(field.name())), value);
    }
}

/// The journal takes capital letters, digits and underscores.
fn name(field: &str) -> String {
    let one = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    field.chars().take(48).map(one).collect()
}

fn cut(value: &str) -> &str {
    let end = (0..=LONGEST.min(value.len())).rev().find(|end| value.is_char_boundary(*end));
    value.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::writer;

    #[test]
    fn the_journal_gets_level_message_and_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let sender = Sender::to(path.clone()).unwrap();
        let (writer, guard) = writer::start(sender, |_, _| {}).unwrap();
        let dropped = writer.dropped();
        let subscriber = tracing_subscriber::registry().with(Journal(writer));
        let mut buffer = vec![0; 65_536];
        let mut next = || {
            let size = journal.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(buffer.get(..size).unwrap()).into_owned()
        };
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(service = "a", bytes_in = 7, odd = "x\ny", "no {}", "master");
            let text = next();
            for line in
                ["MESSAGE\n", "PRIORITY=4\n", "POINTSMAN_SERVICE=a\n", "POINTSMAN_BYTES_IN=7\n"]
            {
                assert!(text.contains(line), "{line} in {text:?}");
            }
            assert!(text.contains("POINTSMAN_ODD\n\u{3}\0\0\0\0\0\0\0x\ny\n"), "{text:?}");
            assert!(text.contains("no master service=a bytes_in=7 odd=x\ny"), "{text:?}");
            tracing::info!(long = "ä".repeat(5000), "long");
            let text = next();
            assert!(text.len() > LONGEST && text.len() < 3 * LONGEST, "{}", text.len());
            std::fs::remove_file(&path).unwrap();
            tracing::info!("nobody takes it");
        });
        drop(guard);
        // The guard waits for the writing thread no longer than a second.
        harness::wait_until("the line that nobody took", Duration::from_secs(30), || match dropped
            .count()
        {
            1 => Ok(()),
            other => Err(format!("{other} lines lost")),
        });
    }

    #[test]
    fn a_stream_is_ours_by_its_device_and_number() {
        let stat = fstat(io::stdout()).unwrap();
        assert!(is_ours(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        assert!(!is_ours(Some(&format!("{}:{}", stat.st_dev, stat.st_ino + 1))));
        assert!(!is_ours(Some("nonsense")) && !is_ours(None));
    }
}
