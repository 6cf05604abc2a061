//! A user and a password, by whichever of the three ways the password was given.
//!
//! The ways are options of their own (`CredentialKeys`); a program that authenticates wants only
//! the result. Reading the file or the variable happens once, while the configuration is loaded, so
//! that a missing file is a fault of the configuration like any other, shown with its line before
//! anything has started.

use super::secret::Secret;
use super::section::{FromValues, field};
use super::values::Values;

/// What to authenticate with. Both empty: no authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// ACL user name; without it a password is meant for the default user.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// A secret by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Token(pub Option<Secret>);

impl FromValues for Token {
    fn read(values: &Values, section: &str) -> Self {
        Self(values.passwords.get(section).cloned())
    }
}

impl FromValues for Credentials {
    fn read(values: &Values, section: &str) -> Self {
        Self {
            username: field(values, section, "username"),
            password: values.passwords.get(section).cloned(),
        }
    }
}
