//! Why a client was rejected because of where it came from.

use crate::labelled::labelled;

labelled! {
    /// Why a client was rejected before it became a session.
    pub enum Rejection {
        /// Its address is in none of the networks that may connect.
        NotAllowed = "not_allowed",
        /// It comes from a network of load balancers and sent no PROXY protocol header.
        HeaderMissing = "header_missing",
        /// Its header violates the specification, or ended too early.
        HeaderMalformed = "header_malformed",
        /// Its header is longer than is accepted.
        HeaderTooLong = "header_too_long",
        /// The checksum of its header is wrong.
        HeaderChecksum = "header_checksum",
        /// Its header was not complete in time.
        HeaderTimeout = "header_timeout",
        /// Too many connections had not sent their header yet.
        TooManyHeaders = "too_many_headers",
    }
}

impl Rejection {
    /// What the client is sent before its connection is closed. It begins as the reply with which
    /// Redis rejects clients of other hosts in protected mode. Peers that send broken headers are
    /// no Redis clients and are sent nothing.
    pub(crate) const fn reply(self) -> &'static [u8] {
        match self {
            Self::NotAllowed => b"-DENIED the address of this client is not allowed\r\n",
            Self::HeaderMissing => {
                b"-DENIED connections from this address need a PROXY protocol header\r\n"
            }
            _ => b"",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_labels_by_number() {
        for (number, reason) in Rejection::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number, "{}", reason.label());
        }
    }
}
