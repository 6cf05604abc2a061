//! Which replies are held, and until when, rule by rule.

use std::time::Duration;

use resp::{CommandInfo, Ledger, ServerCommands};

use crate::durability::confirmations::{Confirmations, Fault};
use crate::options::{Durability, OnTimeout};

const WAIT: &str = "*3 WAIT 1 250 ";

/// Sent after a blocking command.
const AFTER_BLOCKING: &str = "*3 WAIT 0 1 *3 SPUBLISH pointsman:durability 1 ";

const NOT_CONFIRMED: &str =
    "-NOREPLICAS The write is not confirmed by enough replicas, its outcome is unknown";

/// Follows a new connection to a server whose replicas may still have to connect.
fn patient(on_timeout: OnTimeout, commands: &ServerCommands, resp3: bool) -> Confirmations {
    let rule = Durability { replicas: 1, timeout: Duration::from_millis(250), on_timeout };
    let ledger = Ledger::of_protocol(resp3);
    Confirmations::new(rule, Duration::from_secs(10), commands.clone(), ledger)
}

fn confirmations(on_timeout: OnTimeout) -> Confirmations {
    let mut it = patient(on_timeout, &ServerCommands::default(), true);
    it.end_patience();
    it
}

#[test]
fn waits_longer_while_replicas_have_to_connect() {
    let mut it = patient(OnTimeout::Error, &ServerCommands::default(), true);
    assert_eq!(requests(&mut it, &["SET k v"]), "*3 SET k v *3 WAIT 1 10000 ");
    // What was begun stays as it is.
    let bytes = request("SET k v");
    let (most, wait_follows) = it.next_write(&bytes).expect("it can be confirmed");
    it.end_patience();
    assert!(wait_follows && it.written(most) && shown(it.request()) == "*3 WAIT 1 10000 ");
    it.end_patience();
    assert_eq!(requests(&mut it, &["SET k v"]), format!("*3 SET k v {WAIT}"));
}

/// A request of these words.
fn request(words: &str) -> Vec<u8> {
    let words: Vec<&str> = words.split(' ').collect();
    let text = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), text.collect::<String>()).into_bytes()
}

/// Bytes on the wire, without the lengths of strings.
fn shown(wire: &[u8]) -> String {
    let text = String::from_utf8_lossy(wire).replace("\r\n", " ");
    let words = text.split_inclusive(' ').filter(|word| !word.starts_with('$'));
    words.collect()
}

/// Sends all of `bytes`, `at_once` at a time, and returns what the server gets.
fn send(it: &mut Confirmations, bytes: &[u8], at_once: usize) -> Result<String, Fault> {
    let mut wire = Vec::new();
    for piece in bytes.chunks(at_once) {
        let mut rest = piece;
        while !rest.is_empty() {
            let (most, _) = it.next_write(rest)?;
            let (own, after) = rest.split_at(most);
            wire.extend_from_slice(own);
            rest = after;
            if it.written(most) {
                wire.extend_from_slice(it.request());
            }
        }
    }
    Ok(shown(&wire))
}

fn requests(it: &mut Confirmations, all: &[&str]) -> String {
    let bytes: Vec<u8> = all.iter().flat_map(|words| request(words)).collect();
    send(it, &bytes, usize::MAX).expect("it can be confirmed")
}

/// What the client gets of these bytes from the server.
fn receive(it: &mut Confirmations, wire: &str) -> String {
    let mut out = Vec::new();
    it.receive(wire.as_bytes(), &mut out).expect("in step");
    shown(&out)
}

#[test]
fn holds_a_write_until_replicas_have_it() {
    let mut it = confirmations(OnTimeout::Error);
    assert_eq!(requests(&mut it, &["SET k v"]), format!("*3 SET k v {WAIT}"));
    assert_eq!(receive(&mut it, "+OK\r\n"), "");
    assert_eq!(receive(&mut it, ":1"), "");
    assert_eq!(receive(&mut it, "\r\n"), "+OK ");
    assert!(it.is_idle());
    // More replicas than demanded are enough, too.
    requests(&mut it, &["INCR n"]);
    assert_eq!(receive(&mut it, ":7\r\n:2\r\n"), ":7 ");
}

#[test]
fn sends_one_wait_after_the_last_write() {
    let mut it = confirmations(OnTimeout::Error);
    let all = ["GET a", "SET k v", "GET b", "INCR n", "GET c", "PING"];
    let wire = "*2 GET a *3 SET k v *2 GET b *2 INCR n ";
    assert_eq!(requests(&mut it, &all), format!("{wire}{WAIT}*2 GET c *1 PING "));
    // A read before the first write passes, one behind it does not.
    assert_eq!(receive(&mut it, "$1\r\na\r\n+OK\r\n$1\r\nb\r\n:1\r\n"), "a ");
    assert_eq!(receive(&mut it, ":1\r\n$1\r\nc\r\n+PONG\r\n"), "+OK b :1 c +PONG ");
}

/// The server begins nothing while it waits, so what arrives meanwhile is confirmed by one `WAIT`.
#[test]
fn gathers_requests_while_an_answer_is_awaited() {
    let mut it = confirmations(OnTimeout::Error);
    assert!(!it.gathers());
    requests(&mut it, &["SET k v", "GET k"]);
    assert!(it.gathers());
    receive(&mut it, "+OK\r\n");
    assert!(it.gathers());
    assert_eq!(receive(&mut it, ":1\r\n$1\r\nv\r\n"), "+OK v ");
    assert!(!it.gathers());
    requests(&mut it, &["GET k"]);
    assert!(!it.gathers(), "reads need no answer");
}

/// What was examined has to be written next, until its end.
#[test]
fn completes_what_it_has_examined_before_it_gathers() {
    let mut it = confirmations(OnTimeout::Error);
    let bytes = [request("SET k v"), request("GET k")].concat();
    let (most, wait_follows) = it.next_write(&bytes).expect("it can be confirmed");
    assert!(wait_follows && it.has_examined() && !it.gathers());
    assert!(it.written(most) && it.has_examined() && !it.gathers());
    let (rest, wait_follows) = it.next_write(&bytes[most..]).expect("it can be confirmed");
    assert!(!wait_follows && !it.written(rest) && !it.has_examined() && it.gathers());
}

#[test]
fn gives_up_when_too_much_stands_behind_a_write() {
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["SET k v", "GET large"]);
    let large = format!("+OK\r\n${}\r\n", 33 << 20);
    assert_eq!(receive(&mut it, &large), "");
    let (part, mut out) = (vec![b'x'; 1 << 20], Vec::new());
    let received: Vec<_> = (0..33).map(|_| it.receive(&part, &mut out)).collect();
    assert_eq!(received.iter().position(Result::is_err), Some(31), "beyond 32 MiB");
    assert_eq!(received[31], Err(Fault::TooMuchHeld));
}

#[test]
fn gives_up_when_too_many_alternations_are_in_flight() {
    let mut it = confirmations(OnTimeout::Error);
    let pairs = [request("SET k v"), request("GET k")].concat().repeat(1 << 12);
    let sent = (0..256).map(|_| send(&mut it, &pairs, usize::MAX).map(drop));
    let sent: Vec<_> = sent.collect();
    assert_eq!(sent.iter().position(Result::is_err), Some(128), "beyond a million");
    assert_eq!(sent[128], Err(Fault::TooMuchHeld));
}

#[test]
fn sends_none_for_reads() {
    let mut it = confirmations(OnTimeout::Error);
    assert_eq!(
        requests(&mut it, &["GET a", "HELLO 3", "CLIENT ID"]),
        "*2 GET a *2 HELLO 3 *2 CLIENT ID "
    );
    assert!(it.is_idle());
}

#[test]
fn replaces_replies_to_writes_that_are_not_confirmed() {
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["SET k v", "GET b", "LPUSH k v"]);
    let wrong = "-WRONGTYPE not a list\r\n";
    assert_eq!(receive(&mut it, &format!("+OK\r\n$1\r\nb\r\n{wrong}")), "");
    let expected = format!("{NOT_CONFIRMED} b -WRONGTYPE not a list ");
    assert_eq!(receive(&mut it, ":0\r\n"), expected);
    assert_eq!((it.take_not_confirmed(), it.take_not_confirmed()), (1, 0));
    // So does a server that refuses to wait.
    requests(&mut it, &["SET k v"]);
    let expected = format!("{NOT_CONFIRMED}: NOPERM no permission ");
    assert_eq!(receive(&mut it, "+OK\r\n-NOPERM no permission\r\n"), expected);
}

#[test]
fn closes_instead_if_that_is_demanded() {
    let mut it = confirmations(OnTimeout::Close);
    requests(&mut it, &["SET k v"]);
    let mut out = Vec::new();
    assert_eq!(it.receive(b"+OK\r\n:0\r\n", &mut out), Err(Fault::NotConfirmed));
    assert!(out.is_empty());
    // A reply that reports no write needs no replica.
    let mut it = confirmations(OnTimeout::Close);
    requests(&mut it, &["SET k"]);
    assert_eq!(receive(&mut it, "-ERR arguments\r\n:0\r\n"), "-ERR arguments ");
}

#[test]
fn confirms_a_transaction_by_its_end() {
    let mut it = confirmations(OnTimeout::Error);
    assert_eq!(requests(&mut it, &["MULTI", "SET k v"]), "*1 MULTI *3 SET k v ");
    assert_eq!(receive(&mut it, "+OK\r\n+QUEUED\r\n"), "+OK +QUEUED ");
    assert_eq!(requests(&mut it, &["EXEC"]), format!("*1 EXEC {WAIT}"));
    assert_eq!(receive(&mut it, "*1\r\n+OK\r\n"), "");
    assert_eq!(receive(&mut it, ":1\r\n"), "*1 +OK ");
    // Byte by byte, too.
    requests(&mut it, &["MULTI", "SET k v"]);
    let mut out = Vec::new();
    for byte in b"+OK\r\n+QUEUED\r\n" {
        it.receive(&[*byte], &mut out).expect("in step");
    }
    assert_eq!(out, b"+OK\r\n+QUEUED\r\n");
}

#[test]
fn confirms_writes_after_a_refused_transaction() {
    let mut it = confirmations(OnTimeout::Error);
    assert_eq!(requests(&mut it, &["MULTI", "SET k v"]), "*1 MULTI *3 SET k v ");
    assert!(!it.takes_wait());
    assert_eq!(receive(&mut it, "-NOPERM multi\r\n+OK\r\n"), "-NOPERM multi ");
    assert!(it.takes_wait() && !it.takes_wait());
    assert_eq!(receive(&mut it, ":0\r\n:0\r\n:1\r\n"), "+OK ");
    assert_eq!(requests(&mut it, &["SET k v"]), format!("*3 SET k v {WAIT}"));
}

/// The end of a subscription is still in flight when the refusal arrives.
#[test]
fn confirms_writes_after_a_transaction_that_a_subscriber_began() {
    let mut it = patient(OnTimeout::Error, &ServerCommands::default(), false);
    it.end_patience();
    requests(&mut it, &["SUBSCRIBE c", "MULTI", "UNSUBSCRIBE c", "SET k v"]);
    let subscribed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let ended = subscribed.replace("$9\r\nsub", "$11\r\nunsub").replace(":1", ":0");
    receive(&mut it, &format!("{subscribed}-ERR only in this context\r\n{ended}"));
    assert_eq!(receive(&mut it, "+OK\r\n"), "");
    assert!(it.takes_wait());
    assert_eq!(receive(&mut it, ":0\r\n:0\r\n:1\r\n"), "+OK ");
}

/// A script writes, and returns what a server answers to a request that it queues.
#[test]
fn holds_queued_status_after_refused_transaction() {
    for piece in [1, usize::MAX] {
        let mut it = confirmations(OnTimeout::Error);
        requests(&mut it, &["MULTI", "EVAL s 0"]);
        let mut out = Vec::new();
        let replies = b"-NOPERM multi\r\n+QUEUED\r\n";
        replies.chunks(piece.min(replies.len())).for_each(|bytes| {
            it.receive(bytes, &mut out).expect("in step");
        });
        assert_eq!(shown(&out), "-NOPERM multi ");
        assert!(it.takes_wait());
        assert_eq!(receive(&mut it, ":0\r\n:0\r\n:1\r\n"), "+QUEUED ");
    }
    // In a transaction, only the whole status says that nothing was written.
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["MULTI", "SET k v"]);
    assert_eq!(receive(&mut it, "+OK\r\n+QUEUED2\r\n"), "+OK ");
}

/// A server refuses these for their number of words, and keeps the transaction as it was. Its
/// refusal of `EXEC` ends it.
#[test]
fn follows_transactions_beside_malformed_requests() {
    let mut it = confirmations(OnTimeout::Error);
    let wire = format!("*2 MULTI x *3 SET k v {WAIT}");
    assert_eq!(requests(&mut it, &["MULTI x", "SET k v"]), wire);
    assert_eq!(receive(&mut it, "-ERR arguments\r\n+OK\r\n:1\r\n"), "-ERR arguments +OK ");
    requests(&mut it, &["MULTI"]);
    assert_eq!(receive(&mut it, "+OK\r\n"), "+OK ");
    for malformed in ["DISCARD x", "RESET x", "MULTI x"] {
        let sent = requests(&mut it, &[malformed, "SET k v"]);
        assert_eq!(sent, format!("*2 {malformed} *3 SET k v "));
        let replies = "-ERR arguments\r\n+QUEUED\r\n";
        assert_eq!(receive(&mut it, replies), "-ERR arguments +QUEUED ", "{malformed}");
        assert!(!it.takes_wait() && it.is_idle(), "{malformed}");
    }
    let wire = format!("*2 EXEC x *3 SET k v {WAIT}");
    assert_eq!(requests(&mut it, &["EXEC x", "SET k v"]), wire);
    assert_eq!(receive(&mut it, "-EXECABORT\r\n+OK\r\n:1\r\n"), "-EXECABORT +OK ");
}

/// The transaction goes on, and a `WAIT` would be queued in it.
#[test]
fn follows_transactions_whose_end_is_refused() {
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["MULTI", "DISCARD"]);
    assert_eq!(receive(&mut it, "+OK\r\n-NOPERM discard\r\n"), "+OK -NOPERM discard ");
    assert_eq!(requests(&mut it, &["SET k v"]), "*3 SET k v ");
    assert_eq!(receive(&mut it, "+QUEUED\r\n"), "+QUEUED ");
    assert!(!it.takes_wait());
}

/// No server waits for what a blocked client was given unless another command follows.
#[test]
fn confirms_blocking_commands_from_another_command_on() {
    for refused in [
        ":0",
        "-ERR unknown command `SPUBLISH`, with args beginning with: ",
        "-NOPERM this user has no permissions to run the 'spublish' command",
    ] {
        let mut it = confirmations(OnTimeout::Error);
        let wire = format!("*3 BLPOP q 0 {AFTER_BLOCKING}{WAIT}");
        assert_eq!(requests(&mut it, &["BLPOP q 0"]), wire);
        assert_eq!(receive(&mut it, &format!("*2\r\n+q\r\n+x\r\n:1\r\n{refused}\r\n")), "");
        assert_eq!(receive(&mut it, ":1\r\n"), "*2 +q +x ");
        assert!(it.is_idle());
    }
}

/// The number of replicas then says nothing about what the blocked client was given.
#[test]
fn does_not_confirm_blocking_commands_if_the_message_is_refused() {
    for refused in [
        "-ERR unknown command 'SPUBLISH', with args beginning with: ",
        "-NOPERM User app has no permissions to run the 'spublish' command",
    ] {
        let mut it = confirmations(OnTimeout::Error);
        requests(&mut it, &["BLPOP q 0"]);
        let wire = format!("*2\r\n+q\r\n+x\r\n:1\r\n{refused}\r\n:1\r\n");
        assert_eq!(
            receive(&mut it, &wire).trim_end(),
            format!("{NOT_CONFIRMED}: {}", &refused[1..]).trim_end()
        );
        // Only for this one.
        requests(&mut it, &["SET k v"]);
        assert_eq!(receive(&mut it, "+OK\r\n:1\r\n"), "+OK ");
    }
}

#[test]
fn keeps_pushes_in_order() {
    let mut it = confirmations(OnTimeout::Error);
    let push = ">2\r\n+invalidate\r\n*1\r\n+k\r\n";
    requests(&mut it, &["SET k v"]);
    assert_eq!(receive(&mut it, &format!("{push}+OK\r\n{push}")), ">2 +invalidate *1 +k ");
    assert_eq!(
        receive(&mut it, &format!("{push}:1\r\n")),
        "+OK >2 +invalidate *1 +k >2 +invalidate *1 +k "
    );
}

#[test]
fn holds_nothing_of_requests_that_are_not_answered() {
    let mut it = confirmations(OnTimeout::Error);
    let all = ["CLIENT REPLY SKIP", "SET a 1", "SET b 1", "CLIENT REPLY OFF", "SET c 1"];
    let (skipped, off) =
        ("*3 CLIENT REPLY SKIP *3 SET a 1 *3 SET b 1 ", "*3 CLIENT REPLY OFF *3 SET c 1 ");
    assert_eq!(requests(&mut it, &all), format!("{skipped}{WAIT}{off}"));
    assert_eq!(receive(&mut it, "+OK\r\n"), "");
    assert!(!it.takes_wait());
    assert_eq!(receive(&mut it, ":1\r\n"), "+OK ");
    assert_eq!(requests(&mut it, &["CLIENT REPLY ON"]), "*3 CLIENT REPLY ON ");
    assert_eq!(receive(&mut it, "+OK\r\n"), "+OK ");
}

/// It is taken to be accepted, so what follows would be attributed to other requests.
#[test]
fn notices_that_silence_is_refused() {
    for (all, before) in [
        (&["CLIENT REPLY OFF", "SET a 1"][..], ""),
        (&["CLIENT REPLY SKIP", "INCRBY a 1", "INCRBY b 2"], ""),
        (&["SET a 1", "CLIENT REPLY OFF", "SET b 1"], "+OK\r\n:1\r\n"),
        (&["GET a", "CLIENT REPLY SKIP", "SET b 1"], "$1\r\na\r\n"),
    ] {
        let mut it = confirmations(OnTimeout::Error);
        requests(&mut it, all);
        assert!(!it.is_idle(), "{all:?}");
        receive(&mut it, before);
        let (mut out, refused) = (Vec::new(), b"-NOPERM no permissions\r\n+OK\r\n");
        assert_eq!(it.receive(refused, &mut out), Err(Fault::Untracked), "{all:?}");
        assert!(out.is_empty(), "{all:?}");
    }
}

#[test]
fn gives_up_when_too_many_changes_are_in_flight() {
    let mut it = confirmations(OnTimeout::Error);
    // In no pattern that could be kept as one.
    let words = |n: u32| if n.wrapping_mul(0x9E37_79B9) >> 31 == 0 { "SELECT 1" } else { "GET k" };
    let all: Vec<u8> = (0..1 << 18).flat_map(|n: u32| request(words(n.wrapping_mul(n)))).collect();
    assert_eq!(send(&mut it, &all, usize::MAX).err(), Some(Fault::Untracked));
}

#[test]
fn refuses_connections_that_cannot_be_followed() {
    let mut it = confirmations(OnTimeout::Error);
    assert_eq!(send(&mut it, b"*1\r\n$-5\r\n", usize::MAX), Err(Fault::Untracked));
}

/// However the bytes are cut, the client receives the same replies, and each write is followed by a
/// `WAIT`.
#[test]
fn confirms_requests_in_any_pieces() {
    let all = ["SET a 1", "GET a", "MULTI", "INCR b", "EXEC", "DEL a", "GET b"];
    let bytes: Vec<u8> = all.iter().flat_map(|words| request(words)).collect();
    for at_once in 1..bytes.len() {
        let mut it = confirmations(OnTimeout::Error);
        let wire = send(&mut it, &bytes, at_once).expect("it can be confirmed");
        let mut replies: Vec<&str> = [
            "+OK\r\n",
            "$1\r\n1\r\n",
            "+OK\r\n",
            "+QUEUED\r\n",
            "*1\r\n:1\r\n",
            ":1\r\n",
            "$1\r\n1\r\n",
        ]
        .into();
        // The server answers in the order of what it got.
        let mut answers = String::new();
        for request in wire.split('*').filter(|it| !it.is_empty()) {
            answers += if request.contains("WAIT") { ":1\r\n" } else { replies.remove(0) };
        }
        assert!(replies.is_empty() && wire.matches("WAIT").count() >= 1, "{wire}");
        assert!(wire.contains(&format!("DEL a {WAIT}")), "{at_once}: {wire}");
        let (mut out, size) = (Vec::new(), 1 + at_once % 7);
        for piece in answers.as_bytes().chunks(size) {
            it.receive(piece, &mut out).expect("in step");
        }
        assert_eq!(shown(&out), "+OK 1 +OK +QUEUED *1 :1 :1 1 ", "{at_once}");
        assert!(it.is_idle());
    }
}

/// Servers would confirm too little, whatever follows the blocking command: a request that the
/// server rejects does not count for it.
#[test]
fn confirms_every_blocking_command_of_a_run() {
    let mut it = confirmations(OnTimeout::Error);
    let wire = format!("*3 BLPOP q 0 *3 SET k v {AFTER_BLOCKING}{WAIT}");
    assert_eq!(requests(&mut it, &["BLPOP q 0", "SET k v"]), wire);
}

/// A message of a subscription is no answer to `WAIT`.
#[test]
fn takes_no_message_for_an_answer() {
    let mut it = patient(OnTimeout::Error, &ServerCommands::default(), false);
    it.end_patience();
    requests(&mut it, &["SUBSCRIBE c"]);
    receive(&mut it, "*3\r\n+subscribe\r\n+c\r\n:1\r\n");
    requests(&mut it, &["SET k v"]);
    let message = "*3\r\n+message\r\n+c\r\n+m\r\n";
    let refused = "-ERR not while subscribed\r\n";
    let expected = "-ERR not while subscribed *3 +message +c +m ";
    assert_eq!(receive(&mut it, &format!("{refused}{message}")), expected);
    assert_eq!(receive(&mut it, refused), "");
    // Before the refusal it is taken for the reply. It is held then, and not replaced.
    requests(&mut it, &["SET k v"]);
    assert_eq!(receive(&mut it, message), "");
    let expected = "*3 +message +c +m -ERR not while subscribed ";
    assert_eq!(receive(&mut it, &format!("{refused}{refused}")), expected);
    assert_eq!(it.take_not_confirmed(), 0);
}

/// A script may return values that are nested deeper than is tracked. Other clients of a shared
/// connection must not suffer from it.
#[test]
fn follows_deeply_nested_replies() {
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["EVAL x 0", "GET k"]);
    let nested = "*1\r\n".repeat(1_000) + ":1\r\n";
    assert_eq!(receive(&mut it, &nested), "");
    assert_eq!(receive(&mut it, ":1\r\n+v\r\n"), shown(nested.as_bytes()) + "+v ");
}

/// A command of a module or of a later release: the server's word counts, and without it the
/// command may write.
#[test]
fn asks_the_server_which_unknown_commands_read() {
    let commands = ServerCommands::default();
    let mut it = patient(OnTimeout::Error, &commands, true);
    it.end_patience();
    let waited = format!("*2 JSON.GET k {WAIT}");
    assert_eq!(requests(&mut it, &["JSON.GET k"]), waited);
    assert_eq!(receive(&mut it, "+v\r\n:1\r\n"), "+v ");
    let info = |name: &str, flags: &[&str]| CommandInfo {
        name: name.to_owned(),
        has_keys: true,
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    commands.store(&[info("json.get", &["readonly", "module"]), info("json.set", &["write"])]);
    assert_eq!(requests(&mut it, &["JSON.GET k"]), "*2 JSON.GET k ");
    assert_eq!(receive(&mut it, "+v\r\n"), "+v ");
    assert_eq!(requests(&mut it, &["JSON.SET k v"]), format!("*3 JSON.SET k v {WAIT}"));
}

/// A client that acknowledges a job and waits for the next one.
#[test]
fn confirms_what_was_written_before_a_blocking_command() {
    let mut it = confirmations(OnTimeout::Error);
    let wire = requests(&mut it, &["LREM p 1 x", "GET k", "BLMOVE q p LEFT RIGHT 0"]);
    let blocking = format!("*6 BLMOVE q p LEFT RIGHT 0 {AFTER_BLOCKING}{WAIT}");
    assert_eq!(wire, format!("*4 LREM p 1 x {WAIT}*2 GET k {blocking}"));
    assert!(it.blocked_on().is_none());
    assert_eq!(receive(&mut it, ":1\r\n:1\r\n+v\r\n"), ":1 +v ");
    assert!(it.blocked_on().is_some(), "its client may leave");
    assert_eq!(receive(&mut it, "$1\r\nx\r\n"), "");
    assert!(it.blocked_on().is_none());
    assert_eq!(receive(&mut it, ":0\r\n:0\r\n:1\r\n"), "x ");
    let wire = requests(&mut it, &["SET k v", "BLPOP q 0", "SET k w", "QUIT", "SET k x"]);
    let blocking = format!("*3 BLPOP q 0 *3 SET k w {AFTER_BLOCKING}{WAIT}");
    assert_eq!(wire, format!("*3 SET k v {WAIT}{blocking}*1 QUIT *3 SET k x {WAIT}"));
}

/// The answer to `WAIT` could not be told from a reply.
#[test]
fn gives_up_when_a_transaction_cannot_be_followed() {
    let mut it = confirmations(OnTimeout::Error);
    requests(&mut it, &["MULTI", "SUBSCRIBE c", "SET k v", "EXEC", "STRLEN k"]);
    let mut out = Vec::new();
    assert_eq!(it.receive(b"+OK\r\n+QUEUED\r\n", &mut out), Err(Fault::Untracked));
}

/// The server reads what a client sends while a blocking command lets it wait.
#[test]
fn bounds_the_answers_awaited_behind_a_blocking_command() {
    let mut it = confirmations(OnTimeout::Error);
    let mut sent = 0;
    while !it.gathers() {
        requests(&mut it, &["BLPOP q 0"; 50]);
        sent += 50;
    }
    assert!((50..1000).contains(&sent), "{sent}");
    // With a reply held, it is the server's `WAIT` that is awaited.
    receive(&mut it, "$1\r\nx\r\n");
    assert!(it.gathers() && it.blocked_on().is_none());
}
