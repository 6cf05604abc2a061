//! Enums that are counted and logged: each value has a number, from zero in their order, and a
//! label in snake case that does not change between releases.

macro_rules! labelled {
    (
        $(#[$about:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $name:ident = $label:expr,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$doc])* $name,)+
        }

        impl $type {
            /// All of them, in the order of their numbers.
            #[allow(dead_code, reason = "not every enum is counted")]
            pub const ALL: [Self; [$($type::$name),+].len()] = [$($type::$name),+];

            /// The label in metrics and logs, in snake case. It does not change between releases.
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
