//! Enums whose variants have a label for metrics and logs, and a description for the documents.

/// Defines such an enum, from one row per variant.
macro_rules! labelled {
    (
        $(#[$attribute:meta])*
        enum $enum:ident;
        $($(#[$doc:meta])* $name:ident = $label:literal, $meaning:literal;)+
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $enum {
            $($(#[$doc])* $name,)+
        }

        impl $enum {
            /// Every variant, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The label for metrics and logs, in snake case. Stable across releases.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            /// The description for the documents.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)+
                }
            }
        }
    };
}
