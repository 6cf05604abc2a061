//! Credentials for Pointsman's own connections, and the meaning of a server's refusal.
//!
//! A refusal names the command that was refused and the setting or ACL rule to change. Of the
//! server's error line only the first word is evaluated; a password is never passed on.

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

/// Why a server refuses the connection or a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// `NOAUTH`.
    #[error("it requires a password and none is configured: set {setting}")]
    PasswordMissing {
        /// The configuration section.
        setting: &'static str,
    },
    /// It requires a password, and is not trusted with it. A replica is not before the first master
    /// is verified, even if every sentinel lists it.
    #[error(
        "it requires a password, which only a node gets that a majority of the configured \
         sentinels names as the master, or lists as a replica of the verified master"
    )]
    PasswordWithheld,
    /// `WRONGPASS`.
    #[error("it rejects the user or password: check {setting}")]
    WrongPassword {
        /// The configuration section.
        setting: &'static str,
    },
    /// `NOPERM`.
    #[error("its ACL does not allow our user to run {command}: add {rule} to that user")]
    NotPermitted {
        /// The command.
        command: &'static str,
        /// The ACL rule that allows it.
        rule: &'static str,
    },
    /// `ERR max number of clients reached`, after which it closes the connection.
    #[error(
        "it has reached its limit of clients: raise maxclients, or find the clients that hold so \
         many connections"
    )]
    TooManyClients,
    /// `DENIED`, after which it closes the connection.
    #[error(
        "it is in protected mode and accepts connections from its own host only: set a password \
         there, or protected-mode no"
    )]
    ProtectedMode,
    /// Any other error, after which it closed the connection.
    #[error("it answers a new connection with an error and closes it: check its log")]
    ConnectionRejected,
}

impl Denied {
    /// Reads an error line that answered `command`. `None` if the line is not a refusal.
    #[must_use]
    pub fn read(
        line: &str,
        command: &'static str,
        rule: &'static str,
        setting: &'static str,
    ) -> Option<Self> {
        match line.split(' ').next()? {
            "NOAUTH" => Some(Self::PasswordMissing { setting }),
            "WRONGPASS" => Some(Self::WrongPassword { setting }),
            "NOPERM" => Some(Self::NotPermitted { command, rule }),
            "DENIED" => Some(Self::ProtectedMode),
            "ERR" if line.contains("max number of clients") => Some(Self::TooManyClients),
            // Before Redis 6 a wrong password is a plain error.
            "ERR" if line.contains("invalid password") => Some(Self::WrongPassword { setting }),
            _ => None,
        }
    }

    /// Reads the first error line of a connection that then ended. `None` for a command that is
    /// not permitted: a server does not close a connection for that, so the end has another cause.
    pub(crate) fn read_last(line: &str, setting: &'static str) -> Option<Self> {
        match Self::read(line, "PING", "+ping", setting) {
            Some(Self::NotPermitted { .. }) => None,
            denied => Some(denied.unwrap_or(Self::ConnectionRejected)),
        }
    }

    /// The server refuses every client, so this says nothing about the credentials.
    #[must_use]
    pub fn is_server_wide(&self) -> bool {
        matches!(self, Self::TooManyClients | Self::ProtectedMode | Self::ConnectionRejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_command_and_rule_but_no_secret() {
        let credentials = Credentials::new(Some("probe"), "hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        let denied =
            Denied::read("NOPERM this user has no permissions", "ROLE", "+role", "service.auth")
                .expect("refusal");
        assert!(denied.to_string().contains("ROLE") && denied.to_string().contains("+role"));
        assert_eq!(
            Denied::read("WRONGPASS invalid username-password pair", "AUTH", "", "service.auth"),
            Some(Denied::WrongPassword { setting: "service.auth" })
        );
        assert_eq!(Denied::read("LOADING Redis is loading", "PING", "+ping", "service.auth"), None);
        for (line, denied) in [
            ("ERR max number of clients reached", Denied::TooManyClients),
            ("ERR max number of clients + cluster connections reached", Denied::TooManyClients),
            ("DENIED Redis is running in protected mode", Denied::ProtectedMode),
            ("no healthy upstream", Denied::ConnectionRejected),
        ] {
            assert!(denied.is_server_wide());
            assert_eq!(Denied::read_last(line, "service.auth"), Some(denied));
        }
        let missing = Denied::PasswordMissing { setting: "service.auth" };
        assert!(!missing.is_server_wide());
        assert_eq!(
            Denied::read_last("NOAUTH Authentication required.", "service.auth"),
            Some(missing)
        );
        assert_eq!(Denied::read_last("NOPERM this user has no permissions", "service.auth"), None);
    }
}
