//! Wall clocks of single processes, which a test moves: Redis and Sentinel use the wall clock for
//! timeouts, and a machine's time may be set.
//!
//! A small library in C answers the questions for the time. It is compiled when it is needed, and
//! loaded into the process before the C library.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("clock.c");

/// The wall clock of a process, and of those that replace it.
#[derive(Debug)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// A clock that is right. Its files are in `folder`, which is created if necessary, and from
    /// which programs can be loaded.
    ///
    /// # Panics
    /// If there is no C compiler, which also cargo needs.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).expect("a folder for the clock");
        let (library, source) = (folder.join("clock.so"), folder.join("clock.c"));
        std::fs::write(&source, SOURCE).expect("a file for the clock's source");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(source);
        let built = compiler.status().expect("a C compiler");
        assert!(built.success(), "{compiler:?}: {built}");
        let clock = Self { library, file: folder.join("clock") };
        std::fs::write(&clock.file, [0; 8]).expect("a file for the clock");
        clock
    }

    /// The environment of the process.
    #[must_use]
    pub fn env(&self) -> Vec<(String, String)> {
        [("LD_PRELOAD", &self.library), ("POINTSMAN_TEST_CLOCK", &self.file)]
            .map(|(name, path)| (name.to_owned(), path.display().to_string()))
            .into()
    }

    /// Sets it ahead by this many seconds; 0 makes it right.
    ///
    /// # Panics
    /// If its file is gone.
    pub fn set(&self, ahead: i64) {
        let file = File::options().write(true).open(&self.file).expect("the file of the clock");
        file.write_all_at(&ahead.to_ne_bytes(), 0).expect("eight bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_the_wall_clock_of_a_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Clock::new(folder.path());
        let now = |env: Vec<(String, String)>| {
            let output = Command::new("date").arg("+%s").envs(env).output().expect("the time");
            let digits = String::from_utf8(output.stdout).expect("digits");
            digits.trim().parse::<i64>().expect("a number")
        };
        let ahead = || now(clock.env()) - now(Vec::new());
        for seconds in [0, 3_600, -60] {
            clock.set(seconds);
            assert!((seconds - 5..=seconds).contains(&ahead()), "{seconds}");
        }
    }
}
