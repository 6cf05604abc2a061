//! Enums that are shown in the status, metrics and logs: each value has a label in snake case that
//! does not change between releases.

macro_rules! labelled {
    (
        $(#[$about:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $name:ident = $label:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$doc])* $name,)+
        }

        impl $type {
            /// All of them.
            pub const ALL: [Self; [$($type::$name),+].len()] = [$($type::$name),+];

            /// A stable label in snake case, for metrics, status and logs.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

pub(crate) use labelled;
