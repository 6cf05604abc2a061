//! Loads a text as a configuration file, for tests and for the fuzz target.
#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "a fuzz target uses it"))]

use std::io;
use std::path::Path;

use super::load::{Loaded, assemble};
use super::{Config, Flags};

/// Loads the configuration from a text in place of a file, without environment, flags and password
/// files.
pub(crate) fn load_text(name: &str, text: &str) -> Loaded {
    let no_file = |_: &Path, _: u64| Err(io::Error::from(io::ErrorKind::NotFound));
    assemble(Some((name, text)), &[], &Flags::default(), &no_file)
}

/// Loads any bytes, and what is printed of a valid configuration, which is the same configuration.
/// Returns whether it was valid.
///
/// # Panics
///
/// If it is another one.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let loaded = load_text("fuzz.toml", text);
    let Ok(Config { hash, .. }) = loaded.config() else { return false };
    let printed = loaded.print();
    let again = load_text("fuzz.toml", &printed).config();
    assert_eq!(again.map(|it| it.hash).unwrap_or_default(), hash, "{text}\n{printed}");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs with which the configuration is fuzzed, and variations of them.
    #[test]
    fn reports_faults_or_prints_the_same_configuration() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/config");
        let (mut valid, mut random) = (0, fastrand::Rng::with_seed(7));
        for file in std::fs::read_dir(folder).unwrap() {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            for variation in 0..60 {
                let mut bytes = input.clone();
                for _ in 0..variation % 6 {
                    if !bytes.is_empty() {
                        let at = random.usize(..bytes.len());
                        bytes[at] = random.u8(b'\n'..b'~');
                    }
                }
                valid += usize::from(run(&bytes));
            }
        }
        assert!(valid > 30, "the corpus is of no use: {valid}");
    }
}
