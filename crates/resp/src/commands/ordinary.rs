//! The commands that leave nothing in the connection, so that every other one can be told from
//! them.
//!
//! A command that is not listed here or in [`lookup`](crate::commands::table) may be one of a module, or a
//! renamed one: nobody knows what it leaves. It is forwarded like any other, and binds its session
//! to the server.
//!
//! The table is made at compile time: a hash table of the names, each folded into 64 bits. A name
//! of up to eight bytes loses nothing but its case by that, and the case of its punctuation; longer
//! ones are known by their first and last eight bytes.
//!
//! Deliberately absent: the class of anything, except that scripts run from the cache are told from
//! the rest.

/// The names. `testdata/commands.txt` says where they are from.
pub(crate) const NAMES: &str = "\
    ACL APPEND ARCOUNT ARDEL ARDELRANGE ARGET ARGETRANGE ARGREP ARINFO ARINSERT ARLASTITEMS ARLEN \
    ARMGET ARMSET ARNEXT AROP ARRING ARSCAN ARSEEK ARSET BF.ADD BF.CARD BF.EXISTS BF.INFO BF.INSERT \
    BF.LOADCHUNK BF.MADD BF.MEXISTS BF.RESERVE BGREWRITEAOF BGSAVE BITCOUNT BITFIELD BITFIELD_RO \
    BITOP BITPOS CF.ADD CF.ADDNX CF.COUNT CF.DEL CF.EXISTS CF.INFO CF.INSERT CF.INSERTNX \
    CF.LOADCHUNK CF.RESERVE CLUSTERSCAN CMS.INCRBY CMS.INFO CMS.INITBYDIM CMS.INITBYPROB CMS.MERGE \
    CMS.QUERY COMMAND COMMANDLOG CONFIG COPY DBSIZE DEBUG DECR DECRBY DEL DELEX DELIFEQ DIGEST DUMP \
    ECHO EXISTS EXPIRE EXPIREAT EXPIRETIME FAILOVER FCALL FCALL_RO FLUSHALL \
    FLUSHDB FT.ALIASADD FT.ALIASDEL FT.ALIASLIST FT.ALIASUPDATE FT.ALTER FT.CONFIG FT.CREATE \
    FT.DICTADD FT.DICTDEL FT.DICTDUMP FT.DROPINDEX FT.EXPLAIN FT.EXPLAINCLI FT.INFO FT.PROFILE \
    FT.SEARCH FT.SPELLCHECK FT.SUGADD FT.SUGDEL FT.SUGGET FT.SUGLEN FT.SYNDUMP FT.SYNUPDATE \
    FT.TAGVALS FT._LIST FUNCTION GEOADD GEODIST GEOHASH GEOPOS GEORADIUS GEORADIUSBYMEMBER \
    GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GEOSEARCHSTORE GET GETBIT GETDEL GETEX GETRANGE \
    GETSET HDEL HEXISTS HEXPIRE HEXPIREAT HEXPIRETIME HGET HGETALL HGETDEL HGETEX HINCRBY \
    HINCRBYFLOAT HKEYS HLEN HMGET HMSET HOTKEYS HPERSIST HPEXPIRE HPEXPIREAT HPEXPIRETIME HPTTL \
    HRANDFIELD HSET HSETEX HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT INCREX INFO \
    JSON.ARRAPPEND JSON.ARRINDEX JSON.ARRINSERT JSON.ARRLEN JSON.ARRPOP JSON.ARRTRIM JSON.CLEAR \
    JSON.DEBUG JSON.DEL JSON.FORGET JSON.GET JSON.MERGE JSON.MGET JSON.MSET JSON.NUMINCRBY \
    JSON.NUMMULTBY JSON.OBJKEYS JSON.OBJLEN JSON.RESP JSON.SET JSON.STRAPPEND JSON.STRLEN \
    JSON.TOGGLE JSON.TYPE KEYS LASTSAVE LATENCY LCS LINDEX LINSERT LLEN LMOVE LMOVEM LMPOP LOLWUT \
    LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM MEMORY MGET MIGRATE MODULE MOVE MSET MSETEX \
    MSETNX OBJECT PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PFCOUNT PFDEBUG PFMERGE PFSELFTEST \
    PING PSETEX PTTL PUBLISH PUBSUB RANDOMKEY RENAME RENAMENX REPLICAOF RESTORE RESTORE-ASKING ROLE \
    RPOP RPOPLPUSH RPUSH RPUSHX SADD SAVE SCARD SDIFF SDIFFCARD SDIFFSTORE SET SETBIT \
    SETEX SETNX SETRANGE SFLUSH SINTER SINTERCARD SINTERSTORE SISMEMBER SLAVEOF SLOWLOG SMEMBERS \
    SMISMEMBER SMOVE SORT SORT_RO SPOP SPUBLISH SRANDMEMBER SREM STRLEN SUBSTR SUNION SUNIONCARD \
    SUNIONSTORE SWAPDB TDIGEST.ADD TDIGEST.BYRANK TDIGEST.BYREVRANK TDIGEST.CDF TDIGEST.CREATE \
    TDIGEST.INFO TDIGEST.MAX TDIGEST.MERGE TDIGEST.MIN TDIGEST.QUANTILE TDIGEST.RANK TDIGEST.RESET \
    TDIGEST.REVRANK TDIGEST.TRIMMED_MEAN TIME TOPK.ADD TOPK.COUNT TOPK.INCRBY TOPK.INFO TOPK.LIST \
    TOPK.QUERY TOPK.RESERVE TOUCH TS.ADD TS.ALTER TS.CREATE TS.CREATERULE TS.DECRBY TS.DEL \
    TS.DELETERULE TS.GET TS.INCRBY TS.INFO TS.MADD TS.MGET TS.MRANGE TS.MREVRANGE TS.NRANGE \
    TS.NREVRANGE TS.QUERYINDEX TS.QUERYLABELS TS.RANGE TS.READ TS.REVRANGE TTL TYPE UNLINK VADD \
    VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VREM VSETATTR VSIM XACK \
    XACKDEL XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XGROUP XINFO XLEN XNACK XPENDING XRANGE \
    XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER ZINTERCARD ZINTERSTORE \
    ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE \
    ZRANGESTORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX \
    ZREVRANGEBYSCORE ZREVRANK ZSCORE ZUNION ZUNIONSTORE";

/// As many places as ten bits can choose among, so that no index is out of bounds.
const PLACES: usize = 1 << PLACES_BITS;
const PLACES_BITS: u32 = 10;

static TABLE: [u64; PLACES] = table(table([0; PLACES], NAMES.as_bytes()), SCRIPTS.as_bytes());

/// Commands that leave nothing either, unless they stand in a transaction. Job queues send hardly
/// anything else.
const SCRIPTS: &str = "EVALSHA EVALSHA_RO";

/// Upper and lower case of a letter differ in this bit only.
const CASE: u64 = !0x2020_2020_2020_2020;

/// What a command of that name, in any case, leaves in the connection; `None` if the table does not
/// say so.
#[inline]
pub(crate) fn stateless_kind(name: &[u8]) -> Option<StatelessKind> {
    const SCRIPT: u64 = key(b"EVALSHA");
    const SCRIPT_RO: u64 = key(b"EVALSHA_RO");
    let key = key(name);
    let mut at = place(key);
    loop {
        match TABLE.get(at) {
            Some(found) if *found == key => {
                return match key {
                    0 => None,
                    SCRIPT | SCRIPT_RO => Some(StatelessKind::Script),
                    _ => Some(StatelessKind::Nothing),
                };
            }
            Some(0) | None => return None,
            Some(_) => at = (at + 1) % PLACES,
        }
    }
}

/// What is known of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatelessKind {
    /// It leaves nothing.
    Nothing,
    /// It runs a script from the cache, and leaves nothing unless it stands in a transaction.
    Script,
}

/// The name in 64 bits; zero for one that is too short to be known.
#[inline]
const fn key(name: &[u8]) -> u64 {
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
const fn place(key: u64) -> usize {
    (key.wrapping_mul(SPREAD) >> (u64::BITS - PLACES_BITS)) as usize
}

/// The table with the names in `names` besides, which are parted by blanks.
#[expect(
    clippy::indexing_slicing,
    reason = "it runs at compile time, where a wrong index is an error"
)]
const fn table(mut table: [u64; PLACES], names: &[u8]) -> [u64; PLACES] {
    let mut rest = names;
    while !rest.is_empty() {
        let mut end = 0;
        while end < rest.len() && rest[end] != b' ' {
            end += 1;
        }
        let (name, behind) = rest.split_at(end);
        let key = key(name);
        assert!(key != 0, "a name is too short");
        let mut at = place(key);
        while table[at] != 0 {
            assert!(table[at] != key, "two names are taken for the same");
            at = (at + 1) % PLACES;
        }
        table[at] = key;
        rest = if behind.is_empty() { behind } else { behind.split_at(1).1 };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{NAMES, StatelessKind, stateless_kind};

    fn leaves_nothing(name: &[u8]) -> bool {
        stateless_kind(name) == Some(StatelessKind::Nothing)
    }

    #[test]
    fn finds_every_name_in_any_case_and_no_other() {
        for name in NAMES.split(' ') {
            assert!(
                leaves_nothing(name.as_bytes()) && leaves_nothing(name.to_lowercase().as_bytes()),
                "{name}"
            );
            let longer = format!("{name}X");
            assert_eq!(
                leaves_nothing(longer.as_bytes()),
                NAMES.split(' ').any(|it| it == longer),
                "{longer}"
            );
            let shorter = &name[1..];
            assert_eq!(
                leaves_nothing(shorter.as_bytes()),
                NAMES.split(' ').any(|it| it == shorter),
                "{shorter}"
            );
        }
        for name in
            [&b""[..], b"G", b"GE", b"\xff\xfe\xfd", b"MULTI", b"NOSUCHCOMMAND", &[b'x'; 300]]
        {
            assert!(!leaves_nothing(name), "{name:?}");
        }
    }
}
