//! Writes log entries in the native protocol of systemd's journal, so that `journalctl` knows level
//! and fields.
//!
//! The protocol (systemd's "Native Journal Protocol") is a datagram of `NAME=value` lines to a
//! socket of the system. It is implemented here because existing crates send from the thread that
//! logs: a journal that hangs would block a worker. Entries pass through the same bounded queue as
//! all lines, and the log's thread sends them.
//!
//! An entry larger than a datagram would need a memory file, so values are truncated.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::writer::{LineQueue, Sink};

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Maximum length of a field's value, in bytes.
const MAX_VALUE_BYTES: usize = 4096;

/// Whether the standard output is connected to the journal: systemd passes the device and inode of
/// the stream.
pub(super) fn is_stdout(variable: Option<&str>) -> bool {
    let Some((device, inode)) = variable.and_then(|text| text.split_once(':')) else {
        return false;
    };
    let same = |stat: rustix::fs::Stat| {
        (device.parse() == Ok(stat.st_dev)) && (inode.parse() == Ok(stat.st_ino))
    };
    fstat(io::stdout()).is_ok_and(same)
}

/// Sends datagrams, on the log's thread.
#[derive(Debug)]
pub(super) struct JournalSocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl JournalSocket {
    /// Opens a socket for the system's journal; `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        let path = Path::new(SOCKET);
        let path = path.exists().then(|| path.to_owned())?;
        Self::to(path)
    }

    fn to(path: PathBuf) -> Option<Self> {
        Some(Self { socket: UnixDatagram::unbound().ok()?, path })
    }
}

impl Sink for JournalSocket {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        // Sends by address each time, so that a restarted journal is found again.
        self.socket.send_to(line, &self.path).map(drop)
    }
}

/// Encodes each event as a datagram and queues it.
#[derive(Debug)]
pub(super) struct JournalLayer(pub(super) LineQueue);

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // The queue drops what does not fit, and counts it.
        let _ = self.0.clone().write_all(&datagram(event));
    }
}

fn datagram(event: &Event<'_>) -> Vec<u8> {
    let metadata = event.metadata();
    let mut entry = JournalEntry::default();
    event.record(&mut entry);
    let mut message = std::mem::take(&mut entry.message);
    message.push_str(&entry.pairs);
    // Priorities of syslog(3).
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

/// The fields collected from an event.
#[derive(Default)]
struct JournalEntry {
    bytes: Vec<u8>,
    message: String,
    /// The fields as text, for readers of the message alone.
    pairs: String,
}

impl JournalEntry {
    fn put(&mut self, name: &str, value: &str) {
        let value = truncate(value);
        self.bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            // A value with a line break is preceded by its length, as eight bytes.
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
        let _ = write!(self.pairs, " {}={}", field.name(), truncate(value));
        self.put(&format!("POINTSMAN_{}", name(field.name())), value);
    }
}

/// The journal accepts capital letters, digits and underscores.
fn name(field: &str) -> String {
    let one = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    field.chars().take(48).map(one).collect()
}

fn truncate(value: &str) -> &str {
    let end = (0..=MAX_VALUE_BYTES.min(value.len())).rev().find(|end| value.is_char_boundary(*end));
    value.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl Visit for JournalEntry {
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
    use crate::logging::writer;

    #[test]
    fn sends_level_message_and_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let sender = JournalSocket::to(path.clone()).unwrap();
        let (writer, guard) = writer::start(sender, |_, _| {}).unwrap();
        let lines = writer.clone();
        let subscriber = tracing_subscriber::registry().with(JournalLayer(writer));
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
            assert!(
                text.len() > MAX_VALUE_BYTES && text.len() < 3 * MAX_VALUE_BYTES,
                "{}",
                text.len()
            );
            std::fs::remove_file(&path).unwrap();
            tracing::info!("no reader");
        });
        drop(guard);
        // The guard waits for the writing thread for at most one second.
        harness::wait_until("the line without a reader", Duration::from_secs(30), || {
            match lines.dropped() {
                1 => Ok(()),
                other => Err(format!("{other} lines lost")),
            }
        });
    }

    #[test]
    fn recognises_stream_by_device_and_inode() {
        let stat = fstat(io::stdout()).unwrap();
        assert!(is_stdout(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        assert!(!is_stdout(Some(&format!("{}:{}", stat.st_dev, stat.st_ino + 1))));
        assert!(!is_stdout(Some("nonsense")) && !is_stdout(None));
    }
}
