//! A password that cannot be shown by accident.
//!
//! Neither formatting nor the printed configuration reveals it: the one way to the text is
//! [`Secret::reveal`], so that a reader of this project finds every use of a password by searching
//! for one word. The memory is wiped on drop. Deliberately absent: serialisation, and any
//! comparison but for equality.

use std::fmt;

use zeroize::Zeroizing;

/// What stands in place of a secret wherever one would be shown. Read back as a password, it draws
/// a warning.
pub const HIDDEN: &str = "<hidden>";

/// A password. Wiped from memory when dropped; `Debug` and `Display` print a placeholder.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the text over.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself, for the one command that authenticates.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_formatting_reveals_it() {
        let secret = Secret::new("hunter2".to_owned());
        let shown = format!("{secret} {secret:?} {secret:#?} {:?}", Some(secret.clone()));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.reveal(), "hunter2");
    }
}
