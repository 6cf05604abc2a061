//! Which requests may write: all but those that are listed here.
//!
//! The list is that of the commands to which Redis gives no flag `write`, without those that run
//! scripts or execute a transaction. A command with subcommands is listed if none of them writes.
//! A name that is not listed counts as a write, which costs time and loses nothing.

use crate::commands::request_words::first_word;

/// Names of commands that write nothing, in upper case and sorted.
const READ_ONLY: [&str; 129] = [
    "ACL",
    "ASKING",
    "AUTH",
    "BGREWRITEAOF",
    "BGSAVE",
    "BITCOUNT",
    "BITFIELD_RO",
    "BITPOS",
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "DBSIZE",
    "DISCARD",
    "DUMP",
    "ECHO",
    "EVALSHA_RO",
    "EVAL_RO",
    "EXISTS",
    "EXPIRETIME",
    "FCALL_RO",
    "GEODIST",
    "GEOHASH",
    "GEOPOS",
    "GEORADIUSBYMEMBER_RO",
    "GEORADIUS_RO",
    "GEOSEARCH",
    "GET",
    "GETBIT",
    "GETRANGE",
    "HELLO",
    "HEXISTS",
    "HEXPIRETIME",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HPEXPIRETIME",
    "HPTTL",
    "HRANDFIELD",
    "HSCAN",
    "HSTRLEN",
    "HTTL",
    "HVALS",
    "INFO",
    "KEYS",
    "LASTSAVE",
    "LATENCY",
    "LCS",
    "LINDEX",
    "LLEN",
    "LOLWUT",
    "LPOS",
    "LRANGE",
    "MEMORY",
    "MGET",
    "MONITOR",
    "MULTI",
    "OBJECT",
    "PEXPIRETIME",
    "PFCOUNT",
    "PING",
    "PSUBSCRIBE",
    "PTTL",
    "PUBLISH",
    "PUBSUB",
    "PUNSUBSCRIBE",
    "QUIT",
    "RANDOMKEY",
    "READONLY",
    "READWRITE",
    "RESET",
    "ROLE",
    "SAVE",
    "SCAN",
    "SCARD",
    "SDIFF",
    "SELECT",
    "SINTER",
    "SINTERCARD",
    "SISMEMBER",
    "SLOWLOG",
    "SMEMBERS",
    "SMISMEMBER",
    "SORT_RO",
    "SPUBLISH",
    "SRANDMEMBER",
    "SSCAN",
    "SSUBSCRIBE",
    "STRLEN",
    "SUBSCRIBE",
    "SUBSTR",
    "SUNION",
    "SUNSUBSCRIBE",
    "TIME",
    "TOUCH",
    "TTL",
    "TYPE",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WAIT",
    "WAITAOF",
    "WATCH",
    "XINFO",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "XREAD",
    "XREVRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZDIFF",
    "ZINTER",
    "ZINTERCARD",
    "ZLEXCOUNT",
    "ZMSCORE",
    "ZRANDMEMBER",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZREVRANK",
    "ZSCAN",
    "ZSCORE",
    "ZUNION",
];

/// The longest of these names.
const LONGEST: usize = 32;

/// Maximum bytes of a request up to the end of its name, if that is listed.
pub const NAME_WITHIN: usize = 64;

/// Whether a request that begins with these bytes may write; `None` if more bytes are needed, of
/// which [`NAME_WITHIN`] are always enough.
#[must_use]
pub fn may_write(beginning: &[u8]) -> Option<bool> {
    let Some(name) = first_word(beginning) else {
        return (beginning.len() >= NAME_WITHIN).then_some(true);
    };
    let mut upper = [0; LONGEST];
    let Some(upper) = upper.get_mut(..name.len()) else { return Some(true) };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    Some(READ_ONLY.binary_search_by(|it| it.as_bytes().cmp(upper)).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_names_in_order() {
        assert!(READ_ONLY.is_sorted() && READ_ONLY.iter().all(|name| name.len() <= LONGEST));
    }

    #[test]
    fn knows_reads_by_name_and_takes_all_else_for_writes() {
        for (request, expected) in [
            (&b"*2\r\n$3\r\nGET\r\n"[..], Some(false)),
            (b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n", Some(false)),
            (b"*3\r\n$3\r\nset\r\n", Some(true)),
            (b"*1\r\n$4\r\nEXEC\r\n", Some(true)),
            (b"*3\r\n$4\r\neval\r\n", Some(true)),
            (b"*3\r\n$8\r\nNEWWRITE\r\n", Some(true)),
            (b"get k\r\n", Some(false)),
            (b"incr k\r\n", Some(true)),
            (b"PING\r\n", Some(false)),
            (b"*2\r\n$3\r\nGE", None),
            (b"*2\r\n$3", None),
            (b"ge", None),
            (&[b'x'; NAME_WITHIN], Some(true)),
        ] {
            assert_eq!(may_write(request), expected, "{}", request.escape_ascii());
        }
    }
}
