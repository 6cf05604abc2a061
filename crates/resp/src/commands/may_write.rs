//! Which requests may write: all but those that are listed here, and those of which the server says
//! that they only read.
//!
//! The list is that of the commands to which Redis gives no flag `write`, without those that run
//! scripts or execute a transaction. A command with subcommands is listed if none of them writes.
//! Of the others, those that a server executes while a script runs for too long write nothing: it
//! would refuse the `WAIT` after them.
//! The server is asked about all others: those of modules and of later releases are among them.
//! What it does not call a read counts as a write, which costs time and loses nothing.

use crate::commands::ordinary::{SLOTS, contains, key, table};
use crate::commands::request_words::first_words;
use crate::commands::server_commands::ServerCommands;

/// Names of commands that write nothing.
const READ_ONLY: &str = "\
    ACL ASKING AUTH BGREWRITEAOF BGSAVE BITCOUNT BITFIELD_RO BITPOS CLIENT CLUSTER COMMAND CONFIG \
    DBSIZE DISCARD DUMP ECHO EVALSHA_RO EVAL_RO EXISTS EXPIRETIME FCALL_RO GEODIST GEOHASH GEOPOS \
    GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GET GETBIT GETRANGE HELLO HEXISTS HEXPIRETIME \
    HGET HGETALL HKEYS HLEN HMGET HPEXPIRETIME HPTTL HRANDFIELD HSCAN HSTRLEN HTTL HVALS INFO \
    KEYS LASTSAVE LATENCY LCS LINDEX LLEN LOLWUT LPOS LRANGE MEMORY MGET MONITOR MULTI OBJECT \
    PEXPIRETIME PFCOUNT PING PSUBSCRIBE PTTL PUBLISH PUBSUB PUNSUBSCRIBE QUIT RANDOMKEY READONLY \
    READWRITE RESET ROLE SAVE SCAN SCARD SDIFF SELECT SINTER SINTERCARD SISMEMBER SLOWLOG \
    SMEMBERS SMISMEMBER SORT_RO SPUBLISH SRANDMEMBER SSCAN SSUBSCRIBE STRLEN SUBSCRIBE SUBSTR \
    SUNION SUNSUBSCRIBE TIME TOUCH TTL TYPE UNSUBSCRIBE UNWATCH WAIT WAITAOF WATCH XINFO XLEN \
    XPENDING XRANGE XREAD XREVRANGE ZCARD ZCOUNT ZDIFF ZINTER ZINTERCARD ZLEXCOUNT ZMSCORE \
    ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE \
    ZREVRANK ZSCAN ZSCORE ZUNION";

static TABLE: [u64; SLOTS] = table([0; SLOTS], READ_ONLY.as_bytes());

/// Maximum bytes of a request up to the end of its name, or of that of its subcommand, if that is
/// listed.
pub const NAME_WITHIN: usize = 64;

/// Whether a request that begins with these bytes may write, for a server that says this of its
/// `commands`. `None` if more bytes are needed, of which [`NAME_WITHIN`] are always enough.
#[must_use]
pub fn may_write(beginning: &[u8], commands: &ServerCommands) -> Option<bool> {
    let needs_more = || (beginning.len() >= NAME_WITHIN).then_some(true);
    let [name, subcommand] = first_words(beginning);
    let Some(name) = name else { return needs_more() };
    let is = |word: &[u8], other: &str| word.eq_ignore_ascii_case(other.as_bytes());
    if !is(name, "SCRIPT") && !is(name, "FUNCTION") {
        return Some(!is_listed(name) && !commands.reads(name));
    }
    let Some(subcommand) = subcommand else { return needs_more() };
    Some(!is(subcommand, "KILL") && !is(subcommand, "STATS"))
}

/// Whether the command writes nothing, whatever the server says.
pub(crate) fn is_listed(name: &[u8]) -> bool {
    contains(&TABLE, key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::server_commands::CommandInfo;
    use crate::commands::table::special_names;

    /// The table identifies long names by a part of them only.
    #[test]
    fn takes_no_other_command_for_a_listed_one() {
        let is_listed = |name: &str| READ_ONLY.split(' ').any(|it| it == name);
        let names = crate::commands::ordinary::NAMES.split(' ').map(str::to_owned);
        for name in names.chain(special_names().map(|(name, _)| name)) {
            let first = name.split(' ').next().unwrap_or_default();
            let request = format!("*2\r\n${}\r\n{first}\r\n$1\r\nk\r\n", first.len());
            assert_eq!(
                may_write(request.as_bytes(), &ServerCommands::default()),
                Some(!is_listed(first)),
                "{first}"
            );
        }
    }

    #[test]
    fn knows_reads_by_name_and_takes_all_else_for_writes() {
        let commands = ServerCommands::default();
        let flags = vec!["readonly".to_owned()];
        commands.store(&[CommandInfo { name: "newread".into(), has_keys: true, flags }]);
        for (request, expected) in [
            (&b"*2\r\n$3\r\nGET\r\n"[..], Some(false)),
            (b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n", Some(false)),
            (b"*3\r\n$3\r\nset\r\n", Some(true)),
            (b"*1\r\n$4\r\nEXEC\r\n", Some(true)),
            (b"*3\r\n$4\r\neval\r\n", Some(true)),
            (b"*3\r\n$8\r\nNEWWRITE\r\n", Some(true)),
            (b"*2\r\n$7\r\nNewRead\r\n$1\r\nk\r\n", Some(false)),
            (b"get k\r\n", Some(false)),
            (b"incr k\r\n", Some(true)),
            (b"PING\r\n", Some(false)),
            (b"*2\r\n$6\r\nscript\r\n$4\r\nKill\r\n", Some(false)),
            (b"*2\r\n$8\r\nFUNCTION\r\n$4\r\nKILL\r\n", Some(false)),
            (b"*2\r\n$8\r\nFUNCTION\r\n$5\r\nSTATS\r\n", Some(false)),
            (b"*3\r\n$8\r\nFUNCTION\r\n$4\r\nLOAD\r\n", Some(true)),
            (b"script kill\n", Some(false)),
            (b"script flush\r\n", Some(true)),
            (b"script\r\nscript kill\r\n", None),
            (b"*1\r\n$6\r\nSCRIPT\r\n*2\r\n$4\r\nKILL\r\n", None),
            (b"*2\r\n$6\r\nSCRIPT\r\n$4\r\nKI", None),
            (b"*2\r\n$3\r\nGE", None),
            (b"*2\r\n$3", None),
            (b"ge", None),
            (&[b'x'; NAME_WITHIN], Some(true)),
        ] {
            assert_eq!(may_write(request, &commands), expected, "{}", request.escape_ascii());
        }
    }
}
