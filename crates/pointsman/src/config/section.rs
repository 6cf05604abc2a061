//! How an option is defined: once.
//!
//! `section!` takes a struct whose fields carry their documentation, their kind, their default and
//! whether a reload changes them, and makes three things of it: the plain struct that the program
//! uses, the table that the file parser, the environment, the flags, `pointsman config` and the
//! documents read, and the step from checked values to the struct. What a person reads about a key
//! is the very comment that stands on the field.

use super::value::{Kind, Typed, Value};
use super::values::Values;

/// Whether a changed value takes effect in a running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// Applies on a reload, to what starts from then on.
    Live,
    /// Needs a restart.
    Restart,
}

/// One option of a section.
#[derive(Debug)]
pub struct OptionSpec {
    /// The key in the file, relative to its section.
    pub key: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// The default in the spelling of the environment; none for what is required or may be absent.
    pub default: Option<&'static str>,
    /// Whether a reload changes it.
    pub reload: Reload,
    /// Its documentation; the first paragraph is the short one.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The first paragraph, on one line.
    #[must_use]
    pub fn summary(&self) -> String {
        paragraph(self.doc, true)
    }

    /// The whole documentation, one paragraph a line.
    #[must_use]
    pub fn paragraphs(&self) -> Vec<String> {
        self.doc
            .split("\n\n")
            .map(|text| paragraph(text, false))
            .filter(|text| !text.is_empty())
            .collect()
    }

    /// The default, read by the rule of its kind. `None` where there is none.
    #[must_use]
    pub fn default_value(&self) -> Option<Value> {
        self.kind.parse(self.default?).ok()
    }
}

fn paragraph(doc: &str, only_first: bool) -> String {
    let text = if only_first { doc.split("\n\n").next().unwrap_or(doc) } else { doc };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What can be made of checked values.
pub(super) trait FromValues {
    /// Takes its fields from below `section`.
    fn read(values: &Values, section: &str) -> Self;
}

/// Takes one field. Values are complete by then, so a fallback is seen only by a test that checks
/// there is none.
pub(super) fn field<T: Typed>(values: &Values, section: &str, key: &str) -> T {
    T::from_value(values.value(&format!("{section}.{key}")))
}

macro_rules! section {
    (
        $(#[doc = $about:literal])*
        $name:ident {
            $( $(#[doc = $doc:literal])* $field:ident: $ty:ty = $kind:expr, $default:expr, $reload:ident; )*
        }
        $( with { $( $(#[doc = $inner_doc:literal])* $inner:ident: $inner_ty:ty; )* } )?
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $ty, )*
            $( $( $(#[doc = $inner_doc])* pub $inner: $inner_ty, )* )?
        }

        impl $name {
            /// What the section is about.
            pub const ABOUT: &'static str = concat!($($about, "\n"),*);
            /// Every key that stands directly in this section.
            pub const OPTIONS: &'static [$crate::config::section::OptionSpec] = &[ $(
                $crate::config::section::OptionSpec {
                    key: stringify!($field),
                    kind: $kind,
                    default: $default,
                    reload: $crate::config::section::Reload::$reload,
                    doc: concat!($($doc, "\n"),*),
                },
            )* ];
        }

        impl $crate::config::section::FromValues for $name {
            fn read(values: &$crate::config::values::Values, section: &str) -> Self {
                Self {
                    $( $field: $crate::config::section::field(values, section, stringify!($field)), )*
                    $( $( $inner: $crate::config::section::FromValues::read(
                        values,
                        &format!("{section}.{}", stringify!($inner)),
                    ), )* )?
                }
            }
        }
    };
}
pub(super) use section;

macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        $name:ident { $( $(#[doc = $doc:literal])* $variant:ident = $text:literal, )* }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $( $(#[doc = $doc])* $variant, )* }

        impl $name {
            /// Every spelling, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($text),*];
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The spelling in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::config::value::Choice for $name {
            fn all() -> &'static [Self] { Self::ALL }
            fn spelling(self) -> &'static str { self.as_str() }
            fn fallback() -> Self { $crate::config::section::first!($(Self::$variant),*) }
        }
    };
}
pub(super) use choice;

macro_rules! first {
    ($first:expr $(, $rest:expr)*) => {
        $first
    };
}
pub(super) use first;
