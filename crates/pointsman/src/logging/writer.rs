//! The thread that writes the log, and its bounded queue of lines.
//!
//! A thread that logs never waits: if the queue is full, the line is dropped and counted. Only the
//! writing thread waits for the log's reader. It writes to the descriptor itself and never through
//! `std::io::stdout`, whose lock it would hold while it waits. A line that cannot be written (no
//! space left, no reader) is dropped and counted as well, and the next one is tried again, so the
//! log continues when the reader or the space is back. The log then reports how many lines are
//! missing.
//!
//! The exit of the process waits for the queue for at most [`FLUSH`], whatever the reader does.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

use crate::system::threads;

/// Maximum number of lines in the queue.
const BACKLOG: usize = 4096;
/// How long the exit of the process waits for the remaining lines.
const FLUSH: Duration = Duration::from_secs(1);
/// Minimum interval between reports of dropped lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A destination of lines.
pub(super) trait Sink: Send + 'static {
    /// Writes one line, and blocks for as long as that takes.
    ///
    /// # Errors
    ///
    /// The reason why the line is lost.
    fn put(&mut self, line: &[u8]) -> io::Result<()>;
}

/// A file descriptor, for example the standard output.
#[derive(Debug)]
pub(super) struct Descriptor<F> {
    file: F,
    /// The last line was truncated by an error, so the next one begins with a line feed.
    cut: bool,
}

impl<F: AsFd> Descriptor<F> {
    pub(super) fn new(file: F) -> Self {
        Self { file, cut: false }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.file, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    self.cut = !bytes.is_empty();
                }
                Err(Errno::INTR) => {}
                // Another process may have made the output non-blocking for all processes that
                // share it.
                Err(Errno::AGAIN) => {
                    match poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl<F: AsFd + Send + 'static> Sink for Descriptor<F> {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        if self.cut {
            self.write(b"\n")?;
        }
        self.write(line)
    }
}

/// The queue of lines. All clones share one state.
#[derive(Debug, Clone)]
pub(super) struct LineQueue {
    queue: SyncSender<Vec<u8>>,
    shared: Arc<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: AtomicUsize,
    dropped: AtomicU64,
    ending: AtomicBool,
}

/// Ends the writer when dropped, after it has written the remaining lines, or after [`FLUSH`].
#[derive(Debug)]
pub(super) struct WriterGuard {
    lines: LineQueue,
    ended: Receiver<()>,
}

/// Starts the thread. It calls `report` with the number of lines dropped since the last call and
/// the last error, once lines can be written again.
///
/// # Errors
///
/// If the system provides no thread.
pub(super) fn start(
    sink: impl Sink,
    report: impl Fn(u64, Option<&io::Error>) + Send + 'static,
) -> io::Result<(LineQueue, WriterGuard)> {
    let (queue, lines) = sync_channel(BACKLOG);
    let (end, ended) = sync_channel(1);
    let shared = Arc::<QueueState>::default();
    let own = Arc::clone(&shared);
    std::thread::Builder::new().name("log".to_owned()).spawn(move || {
        threads::reset_priority();
        write_all(&own, &lines, sink, report);
        // The receiver may have stopped waiting.
        let _ = end.try_send(());
    })?;
    let lines = LineQueue { queue, shared };
    Ok((lines.clone(), WriterGuard { lines, ended }))
}

impl LineQueue {
    /// The number of dropped lines. Can outlive the writer.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(line.to_vec()).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn write_all(
    shared: &QueueState,
    lines: &Receiver<Vec<u8>>,
    mut sink: impl Sink,
    report: impl Fn(u64, Option<&io::Error>),
) {
    let (mut reported, mut at, mut error) = (0, None::<Instant>, None);
    loop {
        let next = if shared.ending.load(Ordering::Acquire) {
            lines.try_recv().ok()
        } else {
            lines.recv().ok()
        };
        let Some(line) = next else { return };
        // An empty line only wakes this thread.
        if line.is_empty() {
            continue;
        }
        let waiting = shared.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Err(why) = sink.put(&line) {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            error = Some(why);
            continue;
        }
        let dropped = shared.dropped.load(Ordering::Relaxed);
        let due = at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL);
        // With a full queue the report would be dropped, too.
        if dropped > reported && due && waiting < BACKLOG / 2 {
            report(dropped - reported, error.take().as_ref());
            (reported, at) = (dropped, Some(Instant::now()));
        }
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.lines.shared.ending.store(true, Ordering::Release);
        // A thread that waits for a line has an empty queue, so this line fits.
        let _ = self.lines.queue.try_send(Vec::new());
        let _in_time = self.ended.recv_timeout(FLUSH);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    /// A sink whose results are given by a script, in order.
    struct Scripted {
        script: Receiver<io::Result<()>>,
        written: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Sink for Scripted {
        fn put(&mut self, line: &[u8]) -> io::Result<()> {
            // After the end of the script every line succeeds.
            self.script.recv().unwrap_or(Ok(()))?;
            self.written.lock().unwrap().push(line.to_vec());
            Ok(())
        }
    }

    #[test]
    fn ends_in_time_when_sink_blocks_and_queue_is_full() {
        let (_stalled, script) = channel();
        let written = Arc::default();
        let (mut lines, guard) = start(Scripted { script, written }, |_, _| {}).unwrap();
        for _ in 0..BACKLOG + 10 {
            lines.write_all(b"line\n").unwrap();
        }
        assert!(lines.dropped() >= 9);
        let begin = Instant::now();
        drop(guard);
        assert!(begin.elapsed() >= FLUSH && begin.elapsed() < 10 * FLUSH, "{:?}", begin.elapsed());
    }

    #[test]
    fn writes_everything_left_before_the_end() {
        let (_, script) = channel();
        let written = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let (mut lines, guard) =
            start(Scripted { script, written: Arc::clone(&written) }, |_, _| {}).unwrap();
        for _ in 0..100 {
            lines.write_all(b"line\n").unwrap();
        }
        drop(guard);
        assert_eq!((written.lock().unwrap().len(), lines.dropped()), (100, 0));
    }

    #[test]
    fn reports_dropped_lines_once_writing_succeeds_again() {
        let (results, script) = channel();
        let (sender, reports) = channel();
        let written = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let report = move |lines, error: Option<&io::Error>| {
            sender.send((lines, error.map(io::Error::kind))).unwrap();
        };
        let (mut lines, guard) =
            start(Scripted { script, written: Arc::clone(&written) }, report).unwrap();
        for result in [Err(Errno::NOSPC.into()), Err(Errno::NOSPC.into()), Ok(()), Ok(())] {
            results.send(result).unwrap();
            lines.write_all(b"line\n").unwrap();
        }
        drop(results);
        drop(guard);
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), [(2, Some(io::ErrorKind::StorageFull))]);
        assert_eq!(written.lock().unwrap().len(), 2);
    }

    #[test]
    fn begins_new_line_after_truncated_one() {
        use std::io::Read as _;
        let (mut reader, writer) = io::pipe().unwrap();
        let mut descriptor = Descriptor::new(writer);
        descriptor.put(b"whole\n").unwrap();
        descriptor.cut = true;
        descriptor.put(b"next\n").unwrap();
        descriptor.put(b"last\n").unwrap();
        drop(descriptor);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "whole\n\nnext\nlast\n");
    }
}
