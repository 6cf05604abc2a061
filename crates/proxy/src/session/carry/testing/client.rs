//! The client of the property test: it knows what it may receive next, and accepts nothing else.
//!
//! At every point that is: the next frame of the reply to its oldest command; a message of a
//! channel that it is subscribed to there; a maintenance push, if it has agreed to those there; or
//! the end, if something has happened that a connection need not survive.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::session::carry::testing::blanks::{Filled, after};
use crate::session::carry::testing::model::{Agreed, Connection, UNKNOWN, frame};
use crate::session::carry::testing::{Reluctance, encode};
use crate::testing::TestProxy;
use crate::{MaintenanceKind, Subscriptions};

/// The settings of one game.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) subscriptions: Subscriptions,
    /// The servers know the maintenance handshake.
    pub(crate) known: bool,
    /// The proxy answers it if they do not, and sends maintenance notifications.
    pub(crate) told: bool,
}

/// A reply that is owed.
struct Owed {
    command: Vec<String>,
    /// What is still missing of it.
    frames: String,
    /// What was received of it.
    came: String,
    /// The numbers of the commands that it reports as executed.
    numbers: Vec<u32>,
    /// The connection's state after it.
    then: Connection,
    /// Notifications before it no longer count after it.
    resets: bool,
    begun: bool,
}

/// The client, and what it must receive.
pub(crate) struct Client<'a> {
    proxy: &'a TestProxy,
    rules: Rules,
    stream: TcpStream,
    /// Received and not examined yet.
    came: Vec<u8>,
    /// The connection's state after everything sent, and after the replies received so far.
    expected: Connection,
    now: Connection,
    owed: VecDeque<Owed>,
    pub(crate) acknowledged: Vec<u32>,
    /// Sent, and lost with its connection.
    pub(crate) unknown: Vec<u32>,
    /// The connection may be closed.
    pub(crate) may_end: bool,
    /// Messages that it must not receive, and the last one that it received, by its kind of
    /// subscription.
    pub(crate) elsewhere: BTreeSet<u32>,
    heard_last: (u32, BTreeSet<String>),
    /// Whether a failover was announced to it, and how many more announcements may come: each is
    /// late, and may come even so.
    pub(crate) warned: bool,
    pub(crate) alarms: u32,
    /// The content of the `MOVING` that it received.
    moved: Option<String>,
    /// The number of the last push.
    event: u64,
    filled: Filled,
    /// What the servers do to new connections: cancelled when this client opens one.
    reluctance: Vec<Reluctance>,
    /// The number of commands answered when the connection was opened.
    heard_before: usize,
    /// Commands sent and answered in all, and the number sent when the session was last disturbed.
    said: usize,
    heard: usize,
    happened_at: usize,
}

impl<'a> Client<'a> {
    pub(crate) fn new(proxy: &'a TestProxy, rules: Rules, reluctance: Vec<Reluctance>) -> Self {
        let stream = proxy.client();
        let expected = Connection::new(rules.known);
        Self {
            proxy,
            rules,
            stream,
            came: Vec::new(),
            now: expected.clone(),
            expected,
            owed: VecDeque::new(),
            acknowledged: Vec::new(),
            unknown: Vec::new(),
            may_end: false,
            elsewhere: BTreeSet::new(),
            heard_last: (0, BTreeSet::new()),
            warned: false,
            alarms: 0,
            moved: None,
            event: 0,
            filled: Filled::default(),
            reluctance,
            heard_before: 0,
            said: 0,
            heard: 0,
            happened_at: 0,
        }
    }

    pub(crate) fn say(&mut self, command: &[String]) {
        let page: Vec<String>;
        let command = if command == ["SCAN", "next"] {
            page = self.expected.next_page().split(' ').map(str::to_owned).collect();
            &page
        } else {
            command
        };
        let mut numbers = Vec::new();
        let frames = self.expected.answer_through(command, &mut numbers, self.rules.told);
        let (then, resets) = (self.expected.clone(), command[0] == "RESET");
        let (command_said, came) = (command.to_vec(), String::new());
        self.owed.push_back(Owed {
            command: command_said,
            frames,
            came,
            numbers,
            then,
            resets,
            begun: false,
        });
        self.said += 1;
        // The connection may be closed; that is noticed when the reply is read.
        drop(self.stream.write_all(encode(command).as_bytes()));
    }

    /// Reads the replies to everything sent so far. Whether the connection is still open.
    pub(crate) fn listen(&mut self) -> bool {
        while let Some(owed) = self.owed.front() {
            let (may_end, owed) = (self.may_end, owed.frames.clone());
            if !self.hear_a_frame() {
                assert!(may_end, "a session without anything in flight was ended; owed {owed:?}");
                return false;
            }
        }
        if self.is_settled() {
            // What was sent afterwards was answered: the connection has survived.
            self.may_end = false;
        }
        true
    }

    /// Receives a message, by every kind of subscription, that was published where the session
    /// certainly is.
    pub(crate) fn hear(&mut self, channel: &str, message: u32) {
        let mut expected: BTreeSet<String> = self.now.hears(channel, message).into_iter().collect();
        while !expected.is_empty() {
            assert!(self.hear_a_frame(), "ended before {expected:?}");
            if self.heard_last.0 == message {
                expected = &expected - &self.heard_last.1;
            }
        }
    }

    /// Waits for the end, which must come.
    pub(crate) fn hear_the_end(&mut self) {
        while self.hear_a_frame() {}
    }

    /// Whether something sent since the last disturbance was answered: the session is connected to
    /// its present server, and complete.
    pub(crate) fn is_settled(&self) -> bool {
        self.heard > self.happened_at
    }

    /// Whether a command was answered over this connection: faults of new connections do not affect
    /// it.
    pub(crate) fn has_arrived(&self) -> bool {
        self.heard > self.heard_before
    }

    /// No reply is owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether it is sent notifications, and to where it is asked to move.
    pub(crate) fn is_told(&self) -> Agreed {
        if self.rules.told { self.now.agreed() } else { Agreed::No }
    }

    /// Receives until a failover was announced, or its end.
    pub(crate) fn wait_to_be_told(&mut self, of_a_failover: bool) {
        while self.warned != of_a_failover {
            assert!(self.hear_a_frame(), "the end came first");
        }
    }

    /// Receives until it was asked to move. Returns the address as it was sent.
    pub(crate) fn wait_to_be_moved(&mut self) -> String {
        while self.moved.is_none() {
            assert!(self.hear_a_frame(), "the end came first");
        }
        self.moved.clone().unwrap_or_default()
    }

    /// Waits until the first byte of something is readable.
    pub(crate) fn wait_for_a_byte(&mut self) {
        assert!(matches!(self.stream.peek(&mut [0]), Ok(1)), "ended before an answer");
    }

    pub(crate) fn is_silent(&mut self) -> bool {
        self.came.is_empty() && crate::testing::is_silent(&mut self.stream)
    }

    /// The session is carried, held, or loses its server. Records whether it may be closed by that,
    /// and that it is disturbed.
    pub(crate) fn something_happens(&mut self) {
        self.may_end |= !self.owed.is_empty() || !self.expected.is_free(self.rules.subscriptions);
        self.moves();
    }

    /// It is no longer known to which server the session is connected.
    pub(crate) fn moves(&mut self) {
        self.happened_at = self.said;
    }

    /// Takes one frame as what it must be. False at the end, after which there is a new connection.
    fn hear_a_frame(&mut self) -> bool {
        let len = loop {
            if let Some(len) = frame(&self.came) {
                break len;
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(read @ 1..) => self.came.extend_from_slice(&chunk[..read]),
                Ok(_) => {
                    // A client library may count the failovers that were announced to it, across
                    // connections.
                    let promised =
                        self.warned && self.came.is_empty() && self.is_told() != Agreed::No;
                    assert!(!promised, "the end, and not a word that the failover is over");
                    return self.end();
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return self.end(),
                Err(error) => {
                    panic!(
                        "no answer and no end: {error}; owed {:?}",
                        self.owed.front().map(|it| &it.frames)
                    )
                }
            }
        };
        let frame: Vec<u8> = self.came.drain(..len).collect();
        self.take(&String::from_utf8(frame).unwrap());
        true
    }

    /// What was received before the end must be a part of what was owed.
    fn end(&mut self) -> bool {
        let owed = self.owed.front().map_or("", |it| it.frames.as_str());
        let came = String::from_utf8_lossy(&self.came).into_owned();
        // It may also be part of a message; or half of the server's refusal, which is replaced only
        // when it is complete.
        let message = !came.is_empty() && came.contains("message\r\n");
        let refusal = owed == "+OK\r\n" && UNKNOWN.starts_with(&came);
        assert!(
            message || refusal || after(owed, &came, false).is_some(),
            "{came:?} and the end, instead of {owed:?}"
        );
        self.unknown.extend(self.owed.drain(..).flat_map(|it| it.numbers));
        self.came.clear();
        self.may_end = false;
        if self.moved.is_none() && self.proxy.drain.phase() == drain::Phase::Serving {
            self.reluctance.iter().for_each(Reluctance::end);
            self.stream = self.proxy.client();
        }
        self.filled = Filled::default();
        self.heard_before = self.said;
        self.expected = Connection::new(self.rules.known);
        self.now = self.expected.clone();
        (self.warned, self.alarms) = (false, 0);
        (self.heard, self.happened_at) = (self.said, self.said);
        false
    }

    fn take(&mut self, frame: &str) {
        let lines: Vec<&str> = frame.split("\r\n").collect();
        match (lines[0], lines.get(2)) {
            (">4", Some(&"FAILING_OVER")) => self.take_notice(MaintenanceKind::FailingOver, &lines),
            (">3", Some(&"FAILED_OVER")) => self.take_notice(MaintenanceKind::FailedOver, &lines),
            (">4", Some(&"MOVING")) => self.take_notice(MaintenanceKind::Moving, &lines),
            (_, Some(&("message" | "pmessage" | "smessage"))) => self.take_message(frame, &lines),
            _ => self.take_answer(frame),
        }
    }

    fn take_answer(&mut self, frame: &str) {
        let Some(owed) = self.owed.front_mut() else { panic!("nobody has asked for {frame:?}") };
        let rest = after(&owed.frames, frame, true).map(str::to_owned);
        let Some(rest) = rest else { panic!("{frame:?} instead of {:?}", owed.frames) };
        (owed.frames, owed.begun) = (rest, true);
        owed.came += frame;
        if !owed.frames.is_empty() {
            return;
        }
        if let Some(owed) = self.owed.pop_front() {
            self.filled.take(&owed.command, &owed.came);
            self.acknowledged.extend(owed.numbers);
            self.now = owed.then;
            self.warned &= !owed.resets;
            self.heard += 1;
        }
    }

    fn take_message(&mut self, frame: &str, lines: &[&str]) {
        let tail = &lines[lines.len() - 4..];
        let (channel, message) = (tail[0], tail[2].parse().unwrap());
        let may = |it: &Connection| it.hears(channel, message).iter().any(|it| it == frame);
        // Between two confirmations it may already be subscribed to one channel, or still to the
        // other.
        let between = self.owed.front().is_some_and(|owed| owed.begun && may(&owed.then));
        assert!(
            between || may(&self.now),
            "{frame:?} is a message that this client is not subscribed to"
        );
        assert!(
            !self.elsewhere.contains(&message),
            "{frame:?} was published where this session is not"
        );
        if self.heard_last.0 != message {
            assert!(self.heard_last.0 < message, "{frame:?} came after {:?}", self.heard_last);
            self.heard_last = (message, BTreeSet::new());
        }
        assert!(self.heard_last.1.insert(frame.to_owned()), "{frame:?} came twice");
    }

    fn take_notice(&mut self, kind: MaintenanceKind, lines: &[&str]) {
        assert_ne!(self.is_told(), Agreed::No, "{lines:?} to a client that is not to be told");
        let number: u64 = lines[3][1..].parse().unwrap();
        assert!(number >= self.event, "{lines:?} is older than {}", self.event);
        self.event = number;
        match kind {
            MaintenanceKind::FailingOver => {
                assert!(
                    self.alarms > 0 && !self.warned,
                    "told of the same failover twice, or of none"
                );
                self.warned = true;
                self.alarms -= 1;
                assert_eq!(lines[4..], [":10", "$2", "[]", ""]);
            }
            MaintenanceKind::FailedOver => {
                assert!(self.warned, "told of the end of a failover and not of its beginning");
                self.warned = false;
                assert_eq!(lines[4..], ["$2", "[]", ""]);
            }
            MaintenanceKind::Moving => {
                assert!(self.proxy.drain.phase() >= drain::Phase::Draining, "nothing is drained");
                // After a carry the same event is announced again.
                let again = self.moved.replace(lines[5..].join(" "));
                assert!(again.is_none() || again == self.moved, "{again:?}, then {:?}", self.moved);
            }
        }
    }
}
