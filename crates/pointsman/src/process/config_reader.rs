//! Reads the configuration on a thread of its own, at the start and at each reload.
//!
//! A read can hang for ever (see [`PendingReads`]), and nothing can end it. It is therefore never
//! waited for without a limit: after [`BOUND`] it is reported as overdue, and everything stays as
//! it was. There is one read at a time, because another one would open the file that hangs. A
//! request during a read is served by another read after it; while the read is overdue, the request
//! is reported as well.
//!
//! A secret file that hangs is waited for at the start only. After that it is read on a thread of
//! its own with a limit (`file_reader`), so that it delays nothing else.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::config::{FileStamp, Loaded, PendingReads, SECRET_PATIENCE, SecretFiles};
use crate::process::config_source::ConfigSource;
use crate::system::threads;

/// A read that takes longer is overdue. Ten thousand times what a file on a disk takes.
pub(crate) const BOUND: Duration = Duration::from_secs(5);

/// The result of a request.
#[derive(Debug)]
pub(crate) enum ConfigRead {
    /// The configuration was read, with or without faults.
    Done(&'static str, Box<Loaded>),
    /// The read has not ended in time. If it ends later, its result follows.
    Overdue(&'static str, String),
    /// The configuration cannot be read now.
    Failed(&'static str, String),
}

/// A read in progress.
#[derive(Debug)]
struct CurrentRead {
    why: &'static str,
    /// When it is reported as overdue.
    report_at: Option<Instant>,
    /// The reason for the read that follows it.
    again: Option<&'static str>,
    /// The file's metadata before the read, and what was read. Closed if the thread failed.
    result: oneshot::Receiver<(FileStamp, Box<Loaded>)>,
}

/// Executes reads on threads of their own.
#[derive(Debug)]
pub(crate) struct ConfigReader {
    pub(crate) source: ConfigSource,
    /// The files that are being read.
    pub(crate) files: PendingReads,
    current: Option<CurrentRead>,
    /// The file's metadata before the last read.
    pub(crate) stamp: FileStamp,
    /// The secret files of the last read.
    pub(crate) secret_files: SecretFiles,
    /// The configuration was read once.
    is_started: bool,
}

impl ConfigReader {
    pub(crate) fn new(source: ConfigSource) -> Self {
        Self {
            source,
            files: PendingReads::default(),
            current: None,
            stamp: None,
            secret_files: SecretFiles::new(),
            is_started: false,
        }
    }

    /// Requests a read; [`next`](Self::next) returns its result. Returns `false` if the read
    /// follows one that is in progress.
    pub(crate) fn request(&mut self, why: &'static str) -> bool {
        let Some(current) = &mut self.current else {
            self.begin(why);
            return true;
        };
        current.again = Some(why);
        let is_overdue = current.report_at.is_none();
        current.report_at.get_or_insert_with(Instant::now);
        is_overdue
    }

    fn begin(&mut self, why: &'static str) {
        let (source, files) = (self.source.clone(), self.files.clone());
        // The first read waits for every file: without a secret there is nothing to start with.
        let patience = self.is_started.then_some(SECRET_PATIENCE);
        let read = move || (source.stamp(), Box::new(source.load(&files, patience)));
        // If no thread can be started, the channel is closed.
        let result = threads::spawn("config", read).unwrap_or_else(|_| oneshot::channel().1);
        let report_at = Some(Instant::now() + BOUND);
        self.current = Some(CurrentRead { why, report_at, again: None, result });
    }

    /// Waits for the result of a request. Cancel safe.
    pub(crate) async fn next(&mut self) -> ConfigRead {
        let Some(current) = &mut self.current else { return std::future::pending().await };
        let (why, report_at) = (current.why, current.report_at);
        let read = tokio::select! {
            biased;
            read = &mut current.result => read,
            () = sleep_until(report_at) => {
                let why = current.again.unwrap_or(why);
                current.report_at = None;
                return ConfigRead::Overdue(why, self.describe_hang());
            }
        };
        if let Some(why) = self.current.take().and_then(|it| it.again) {
            self.begin(why);
        }
        let Ok((stamp, loaded)) = read else {
            let fault = "cannot start a thread to read the configuration";
            return ConfigRead::Failed(why, fault.to_owned());
        };
        self.stamp = stamp;
        self.is_started = true;
        self.secret_files.clone_from(&loaded.secret_files);
        ConfigRead::Done(why, loaded)
    }

    /// Describes the file whose read has not ended.
    pub(crate) fn describe_hang(&self) -> String {
        match self.files.oldest() {
            Some((path, time)) => {
                let (path, seconds) = (path.display(), time.as_secs());
                format!(
                    "{path}: a read has not ended for {seconds} s; is its file system reachable?"
                )
            }
            None => "reading the configuration has not ended".to_owned(),
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, load_text};

    const TEXT: &str = "[[service]]\nsentinels = [\"s\"]\n";

    fn reader(folder: &tempfile::TempDir) -> ConfigReader {
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, TEXT).unwrap();
        ConfigReader::new(ConfigSource(Flags { config: Some(file), ..Flags::default() }))
    }

    #[tokio::test]
    async fn reads_once_more_if_requested_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = reader(&folder);
        assert!(reader.request("one"));
        assert!(!reader.request("two") && !reader.request("three"));
        let ConfigRead::Done("one", loaded) = reader.next().await else {
            panic!("it was not read")
        };
        assert!(loaded.config().is_ok());
        assert!(matches!(reader.next().await, ConfigRead::Done("three", _)));
        assert!(reader.current.is_none());
    }

    #[tokio::test]
    async fn reports_overdue_read_and_uses_it_later() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = reader(&folder);
        let (sender, result) = oneshot::channel();
        let (why, report_at) = ("one", Some(Instant::now()));
        reader.current = Some(CurrentRead { why, report_at, again: None, result });
        let ConfigRead::Overdue("one", fault) = reader.next().await else {
            panic!("it was not overdue")
        };
        assert!(fault.contains("has not ended"), "{fault}");
        // The file still hangs, so a request is reported at once, and served later.
        for why in ["two", "three"] {
            assert!(reader.request(why));
            assert!(matches!(reader.next().await, ConfigRead::Overdue(it, _) if it == why));
        }
        sender.send((None, Box::new(load_text("f", TEXT)))).unwrap();
        assert!(matches!(reader.next().await, ConfigRead::Done("one", _)));
        assert!(matches!(reader.next().await, ConfigRead::Done("three", _)));
    }

    #[tokio::test]
    async fn reports_failed_thread() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = reader(&folder);
        let (why, result) = ("one", oneshot::channel().1);
        reader.current = Some(CurrentRead { why, report_at: None, again: None, result });
        assert!(matches!(reader.next().await, ConfigRead::Failed("one", _)));
        assert!(reader.request("two"));
        assert!(matches!(reader.next().await, ConfigRead::Done("two", _)));
    }
}
