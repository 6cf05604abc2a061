//! Credentials for our own questions, and what a refusal means.
//!
//! A refusal is told as the operator needs it: which command was refused, and what to change. The server's line is passed
//! on only for its first word; a password never is.

use std::fmt;

use zeroize::Zeroizing;

/// A user and a password, wiped from memory when dropped. `Debug` shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: Option<Box<str>>,
    password: Zeroizing<String>,
}

impl Credentials {
    /// `username` is `None` for the default user.
    #[must_use]
    pub fn new(username: Option<&str>, password: &str) -> Self {
        Self { username: username.map(Box::from), password: Zeroizing::new(password.to_owned()) }
    }

    /// The words of an `AUTH` command.
    pub(crate) fn auth(&self) -> Vec<&str> {
        match &self.username {
            Some(user) => vec!["AUTH", user, &self.password],
            None => vec!["AUTH", &self.password],
        }
    }

    /// The words of a `HELLO 3` with these credentials.
    pub(crate) fn hello(&self) -> Vec<&str> {
        vec!["HELLO", "3", "AUTH", self.username.as_deref().unwrap_or("default"), &self.password]
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

/// Why a server refuses us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// `NOAUTH`.
    #[error("it asks for a password and none is configured: set {setting}")]
    PasswordMissing {
        /// The configuration section.
        setting: &'static str,
    },
    /// `WRONGPASS`.
    #[error("it refuses the user or password: check {setting}")]
    WrongPassword {
        /// The configuration section.
        setting: &'static str,
    },
    /// `NOPERM`.
    #[error("its ACL does not let our user run {command}: add {rule} to that user")]
    NotPermitted {
        /// The command.
        command: &'static str,
        /// The ACL rule that allows it.
        rule: &'static str,
    },
}

impl Denied {
    /// Reads an error line that answered `command`. `None` if it is no refusal.
    pub(crate) fn read(line: &str, command: &'static str, rule: &'static str, setting: &'static str) -> Option<Self> {
        match line.split(' ').next()? {
            "NOAUTH" => Some(Self::PasswordMissing { setting }),
            "WRONGPASS" => Some(Self::WrongPassword { setting }),
            "NOPERM" => Some(Self::NotPermitted { command, rule }),
            // Before Redis 6 a wrong password is a plain error.
            "ERR" if line.contains("invalid password") => Some(Self::WrongPassword { setting }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_command_and_the_rule_and_no_secret() {
        let credentials = Credentials::new(Some("probe"), "hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let denied =
            Denied::read("NOPERM this user has no permissions", "ROLE", "+role", "service.auth").expect("refusal");
        assert!(denied.to_string().contains("ROLE") && denied.to_string().contains("+role"));
        assert_eq!(
            Denied::read("WRONGPASS invalid username-password pair", "AUTH", "", "service.auth"),
            Some(Denied::WrongPassword { setting: "service.auth" })
        );
        assert_eq!(Denied::read("LOADING Redis is loading", "PING", "+ping", "service.auth"), None);
    }
}
