//! The macros that define options.
//!
//! `section!` takes a struct whose fields have documentation, a kind, a default and whether a
//! reload changes them. It generates the plain struct that the program uses, the table of
//! [`OptionSpec`]s that the file parser, the environment, the flags, `pointsman config` and the
//! documents read, and the conversion from checked values to the struct. The comment on a field is
//! the documentation of its key.

use super::settings::SettingMap;
use super::value::{FieldType, Value, ValueKind};

/// Whether a changed value takes effect in a running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// A reload applies it.
    Live,
    /// Needs a restart.
    Restart,
}

/// One option of a section.
#[derive(Debug)]
pub struct OptionSpec {
    /// The key in the file, relative to its section.
    pub key: &'static str,
    /// The kind of its value.
    pub kind: ValueKind,
    /// The default, written as in the environment; `None` if the key is required or may be absent.
    pub default: Option<&'static str>,
    /// Whether a reload changes it.
    pub reload: Reload,
    /// Its documentation; the first paragraph is the summary.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The first paragraph of the documentation, as one line.
    pub fn summary(&self) -> String {
        paragraph(self.doc, true)
    }

    /// The whole documentation, one line per paragraph.
    pub fn paragraphs(&self) -> Vec<String> {
        self.doc
            .split("\n\n")
            .map(|text| paragraph(text, false))
            .filter(|text| !text.is_empty())
            .collect()
    }

    /// The default as a value; `None` if there is none.
    pub fn default_value(&self) -> Option<Value> {
        self.kind.parse(self.default?).ok()
    }
}

fn paragraph(doc: &str, only_first: bool) -> String {
    let text = if only_first { doc.split("\n\n").next().unwrap_or(doc) } else { doc };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A struct that can be built from checked values.
pub(super) trait FromSettings {
    /// Builds it from the keys of `section`.
    fn read(values: &SettingMap, section: &str) -> Self;
}

/// The value of one field. Values are complete at this point, so its type's default is not used.
pub(super) fn field<T: FieldType>(values: &SettingMap, section: &str, key: &str) -> T {
    T::from_value(values.value(&format!("{section}.{key}")))
}

macro_rules! section {
    (
        $(#[doc = $about:literal])*
        $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $ty:ty = $kind:expr, $default:expr, $reload:ident;
            )*
        }
        $( with { $( $(#[doc = $inner_doc:literal])* $inner:ident: $inner_ty:ty; )* } )?
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $name {
            $( $(#[doc = $doc])* pub $field: $ty, )*
            $( $( $(#[doc = $inner_doc])* pub $inner: $inner_ty, )* )?
        }

        impl $name {
            /// What the keys of this section configure.
            #[allow(dead_code, reason = "sections of one kind have texts of their own")]
            pub(crate) const ABOUT: &'static str = concat!($($about, "\n"),*);
            /// The keys of this section, without those of inner sections.
            pub(crate) const OPTIONS: &'static [$crate::config::option_spec::OptionSpec] = &[ $(
                $crate::config::option_spec::OptionSpec {
                    key: stringify!($field),
                    kind: $kind,
                    default: $default,
                    reload: $crate::config::option_spec::Reload::$reload,
                    doc: concat!($($doc, "\n"),*),
                },
            )* ];
        }

        impl $crate::config::option_spec::FromSettings for $name {
            fn read(values: &$crate::config::settings::SettingMap, section: &str) -> Self {
                Self {
                    $( $field: $crate::config::option_spec::field(
                        values,
                        section,
                        stringify!($field),
                    ), )*
                    $( $( $inner: $crate::config::option_spec::FromSettings::read(
                        values,
                        &format!("{section}.{}", stringify!($inner)),
                    ), )* )?
                }
            }
        }
    };
}
pub(super) use section;
