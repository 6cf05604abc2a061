//! The table of ordinary commands, which leave no state on the connection.
//!
//! A command that is neither here nor in [`table`](crate::commands::table) may be one of a module,
//! or a renamed one; the state that it leaves is not known. It is forwarded like any other, and
//! pins its session to the server.
//!
//! The table is a hash table that is built at compile time. Each name is folded into 64 bits. A
//! name of up to eight bytes loses only its case, and bit 5 of its punctuation; longer names are
//! identified by their length and their first and last eight bytes.

#![expect(
    clippy::indexing_slicing,
    reason = "a slot is less than the number of slots, and names are split at compile time"
)]

use crate::commands::class::Class;

/// The names. Their sources are listed in `testdata/commands.txt`.
pub(crate) const NAMES: &str = "\
    ACL APPEND ARCOUNT ARDEL ARDELRANGE ARGET ARGETRANGE ARGREP ARINFO ARINSERT ARLASTITEMS ARLEN \
    ARMGET ARMSET ARNEXT AROP ARRING ARSCAN ARSEEK ARSET BF.ADD BF.CARD BF.EXISTS BF.INFO \
    BF.INSERT BF.LOADCHUNK BF.MADD BF.MEXISTS BF.RESERVE BGREWRITEAOF BGSAVE BITCOUNT BITFIELD \
    BITFIELD_RO BITOP BITPOS BITRANGEINTARRAY CF.ADD CF.ADDNX CF.COUNT CF.DEL CF.EXISTS CF.INFO \
    CF.INSERT CF.INSERTNX CF.LOADCHUNK CF.RESERVE CLUSTERSCAN CMS.INCRBY CMS.INFO CMS.INITBYDIM \
    CMS.INITBYPROB CMS.MERGE CMS.QUERY COMMAND COMMANDLOG CONFIG COPY DBSIZE DEBUG DECR DECRBY DEL \
    DELEX DELIFEQ DIGEST DUMP ECHO EXISTS EXPIRE EXPIREAT EXPIRETIME FAILOVER FCALL FCALL_RO \
    FLUSHALL FLUSHDB FT.ALIASADD FT.ALIASDEL FT.ALIASLIST FT.ALIASUPDATE FT.ALTER FT.CONFIG \
    FT.CREATE FT.DICTADD FT.DICTDEL FT.DICTDUMP FT.DROPINDEX FT.EXPLAIN FT.EXPLAINCLI FT.INFO \
    FT.PROFILE FT.SEARCH FT.SPELLCHECK FT.SUGADD FT.SUGDEL FT.SUGGET FT.SUGLEN FT.SYNDUMP \
    FT.SYNUPDATE FT.TAGVALS FT._LIST FUNCTION GEOADD GEODIST GEOHASH GEOPOS GEORADIUS \
    GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GEOSEARCHSTORE GET GETBIT GETDEL \
    GETEX GETRANGE GETSET HDEL HEXISTS HEXPIRE HEXPIREAT HEXPIRETIME HGET HGETALL HGETDEL HGETEX \
    HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HOTKEYS HPERSIST HPEXPIRE HPEXPIREAT HPEXPIRETIME \
    HPTTL HRANDFIELD HSET HSETEX HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT INCREX INFO \
    JSON.ARRAPPEND JSON.ARRINDEX JSON.ARRINSERT JSON.ARRLEN JSON.ARRPOP JSON.ARRTRIM JSON.CLEAR \
    JSON.DEBUG JSON.DEL JSON.FORGET JSON.GET JSON.MERGE JSON.MGET JSON.MSET JSON.NUMINCRBY \
    JSON.NUMMULTBY JSON.OBJKEYS JSON.OBJLEN JSON.RESP JSON.SET JSON.STRAPPEND JSON.STRLEN \
    JSON.TOGGLE JSON.TYPE KEYS LASTSAVE LATENCY LCS LINDEX LINSERT LLEN LMOVE LMOVEM LMPOP LOLWUT \
    LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM MEMORY MGET MIGRATE MODULE MOVE MSET MSETEX \
    MSETNX OBJECT PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PFCOUNT PFDEBUG PFMERGE PFSELFTEST \
    PING PSETEX PTTL PUBLISH PUBSUB RANDOMKEY RENAME RENAMENX REPLICAOF RESTORE RESTORE-ASKING \
    ROLE RPOP RPOPLPUSH RPUSH RPUSHX SADD SADDEX SAVE SCARD SDIFF SDIFFCARD SDIFFSTORE SET SETBIT \
    SETEX SETNX SETRANGE SEXPIRE SEXPIREAT SEXPIRETIME SFLUSH SINTER SINTERCARD SINTERSTORE \
    SISMEMBER SLAVEOF SLOWLOG SMEMBERS SMISMEMBER SMOVE SORT SORT_RO SPERSIST SPEXPIRE SPEXPIREAT \
    SPEXPIRETIME SPOP SPTTL SPUBLISH SRANDMEMBER SREM STRLEN STTL SUBSTR SUNION SUNIONCARD \
    SUNIONSTORE SWAPDB TDIGEST.ADD TDIGEST.BYRANK TDIGEST.BYREVRANK TDIGEST.CDF TDIGEST.CREATE \
    TDIGEST.INFO TDIGEST.MAX TDIGEST.MERGE TDIGEST.MIN TDIGEST.QUANTILE TDIGEST.RANK TDIGEST.RESET \
    TDIGEST.REVRANK TDIGEST.TRIMMED_MEAN TIME TOPK.ADD TOPK.COUNT TOPK.INCRBY TOPK.INFO TOPK.LIST \
    TOPK.QUERY TOPK.RESERVE TOUCH TS.ADD TS.ALTER TS.CREATE TS.CREATERULE TS.DECRBY TS.DEL \
    TS.DELETERULE TS.GET TS.INCRBY TS.INFO TS.MADD TS.MGET TS.MRANGE TS.MREVRANGE TS.NRANGE \
    TS.NREVRANGE TS.QUERYINDEX TS.QUERYLABELS TS.RANGE TS.READ TS.REVRANGE TTL TYPE UNLINK VADD \
    VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VREM VSETATTR VSIM XACK \
    XACKDEL XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XGROUP XINFO XLEN XNACK XPENDING XRANGE \
    XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER ZINTERCARD \
    ZINTERSTORE ZLEXCOUNT ZMOVE ZMOVEMEMBER ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE \
    ZRANGEBYLEX ZRANGEBYSCORE ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK \
    ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCORE ZUNION ZUNIONSTORE";

/// Number of slots: a power of two, so that an index of [`SLOT_BITS`] bits is never out of bounds.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;

static TABLE: [u64; SLOTS] = table(table([0; SLOTS], NAMES.as_bytes()), SCRIPTS.as_bytes());

/// Commands that leave no state either, except in a transaction. Job queues send hardly any other
/// command.
const SCRIPTS: &str = "EVALSHA EVALSHA_RO";

/// Upper and lower case of a letter differ only in the bit that this mask clears.
const CASE: u64 = !0x2020_2020_2020_2020;

/// The class of a command that leaves no state, except in a transaction, by its name in upper or
/// lower case. `None` if it is not in the table.
#[inline]
pub(crate) fn stateless_class(name: &[u8]) -> Option<Class> {
    const SCRIPT: u64 = key(b"EVALSHA");
    const SCRIPT_RO: u64 = key(b"EVALSHA_RO");
    let key = key(name);
    // As in `contains`, which costs eight more instructions for each command but `GET` and `SET`.
    let mut at = slot(key);
    loop {
        match TABLE[at] {
            found if found == key => {
                return match key {
                    0 => None,
                    SCRIPT | SCRIPT_RO => Some(Class::EvalSha),
                    _ => Some(Class::Ordinary),
                };
            }
            0 => return None,
            _ => at = (at + 1) % SLOTS,
        }
    }
}

/// The name folded into 64 bits; zero for a name that is too short to be in the table.
#[inline]
pub(crate) const fn key(name: &[u8]) -> u64 {
    if let [a, b, c] = *name {
        return u32::from_le_bytes([a, b, c, 0]) as u64 & CASE;
    }
    let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) else {
        return 0;
    };
    if name.len() > 8 {
        return long_key(name);
    }
    (u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << u32::BITS) & CASE
}

const fn long_key(name: &[u8]) -> u64 {
    let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) else {
        return 0;
    };
    let (first, last) = (u64::from_le_bytes(*first) & CASE, u64::from_le_bytes(*last) & CASE);
    first.wrapping_mul(SPREAD).rotate_left(name.len() as u32) ^ last
}

/// An odd number close to 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
const fn slot(key: u64) -> usize {
    (key.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS)) as usize
}

/// Adds the names in `names`, separated by spaces, to the table.
pub(crate) const fn table(mut table: [u64; SLOTS], names: &[u8]) -> [u64; SLOTS] {
    let mut rest = names;
    while let Some((name, after)) = split_name(rest) {
        let key = key(name);
        assert!(key != 0, "a name is too short");
        assert!(!contains(&table, key), "two names have the same key");
        table[find(&table, key)] = key;
        rest = after;
    }
    table
}

/// A table of the names that are not in `without` and have no period, which those of modules have.
pub(crate) const fn subset(names: &[u8], without: &[u64; SLOTS]) -> [u64; SLOTS] {
    let (mut result, mut rest) = ([0; SLOTS], names);
    while let Some((name, after)) = split_name(rest) {
        let key = key(name);
        if !has_period(name) && !contains(without, key) {
            result[find(&result, key)] = key;
        }
        rest = after;
    }
    result
}

/// The first name, and the names after it.
const fn split_name(names: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut end = 0;
    while end < names.len() && names[end] != b' ' {
        end += 1;
    }
    let (name, after) = names.split_at(end);
    match after {
        [] if name.is_empty() => None,
        [] => Some((name, after)),
        [_, after @ ..] => Some((name, after)),
    }
}

const fn has_period(mut name: &[u8]) -> bool {
    while let [first, rest @ ..] = name {
        if *first == b'.' {
            return true;
        }
        name = rest;
    }
    false
}

/// The slot of that key, or the empty one in which it belongs. No table is full, so the search
/// ends.
#[inline]
const fn find(table: &[u64; SLOTS], key: u64) -> usize {
    let mut at = slot(key);
    while table[at] != key && table[at] != 0 {
        at = (at + 1) % SLOTS;
    }
    at
}

/// Whether a table has the name with that key. Never true of zero.
#[inline]
pub(crate) const fn contains(table: &[u64; SLOTS], key: u64) -> bool {
    key != 0 && table[find(table, key)] != 0
}

#[cfg(test)]
mod tests {
    use super::{NAMES, stateless_class};
    use crate::commands::class::Class;

    fn is_stateless(name: &[u8]) -> bool {
        stateless_class(name) == Some(Class::Ordinary)
    }

    #[test]
    fn finds_exactly_the_listed_names_in_any_case() {
        for name in NAMES.split(' ') {
            assert!(
                is_stateless(name.as_bytes()) && is_stateless(name.to_lowercase().as_bytes()),
                "{name}"
            );
            let longer = format!("{name}X");
            assert_eq!(
                is_stateless(longer.as_bytes()),
                NAMES.split(' ').any(|it| it == longer),
                "{longer}"
            );
            let shorter = &name[1..];
            assert_eq!(
                is_stateless(shorter.as_bytes()),
                NAMES.split(' ').any(|it| it == shorter),
                "{shorter}"
            );
        }
        for name in
            [&b""[..], b"G", b"GE", b"\xff\xfe\xfd", b"MULTI", b"NOSUCHCOMMAND", &[b'x'; 300]]
        {
            assert!(!is_stateless(name), "{name:?}");
        }
    }
}
