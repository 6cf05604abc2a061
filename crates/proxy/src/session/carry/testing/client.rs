//! The client of the property test: it knows what it may receive next, and accepts nothing else.
//!
//! At every point that is: the next frame of the reply to its oldest command; a message of a
//! channel that it is subscribed to there; a maintenance push, if it has agreed to those there; or,
//! if something has happened that a connection need not survive, the end, or before it one refusal
//! of each command that was not forwarded.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::session::carry::testing::blanks::{Filled, after};
use crate::session::carry::testing::model::{Agreement, ModelConnection, UNKNOWN, frame};
use crate::session::carry::testing::{ConnectionFaults, encode};
use crate::testing::TestProxy;
use crate::{MaintenanceKind, Subscriptions};

/// The settings of one game.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GameRules {
    pub(crate) subscriptions: Subscriptions,
    /// The servers know the maintenance handshake.
    pub(crate) servers_know: bool,
    /// The proxy answers it if they do not, and sends maintenance notifications.
    pub(crate) notifies: bool,
}

/// A reply that is owed.
struct OwedReply {
    command: Vec<String>,
    /// The part that is still missing.
    frames: String,
    /// The part that was received.
    received: String,
    /// The numbers of the commands that it reports as executed.
    numbers: Vec<u32>,
    /// The connection's state after it.
    state_after: ModelConnection,
    /// Notifications before it no longer count after it.
    resets: bool,
    begun: bool,
}

/// The client, and what it must receive.
pub(crate) struct ModelClient<'a> {
    proxy: &'a TestProxy,
    rules: GameRules,
    stream: TcpStream,
    /// Received and not examined yet.
    received: Vec<u8>,
    /// The connection's state after everything sent, and after the replies received so far.
    expected: ModelConnection,
    now: ModelConnection,
    owed: VecDeque<OwedReply>,
    pub(crate) acknowledged: Vec<u32>,
    /// Sent, and lost with its connection.
    pub(crate) unknown: Vec<u32>,
    /// Refused by the proxy: they must not run.
    pub(crate) refused: Vec<u32>,
    /// A command was refused: only refusals and the end may follow.
    is_refused: bool,
    /// The connection may be closed.
    pub(crate) may_end: bool,
    /// Messages that it must not receive, and the last one that it received, by its kind of
    /// subscription.
    pub(crate) elsewhere: BTreeSet<u32>,
    last_message: (u32, BTreeSet<String>),
    /// Whether a failover was announced to it, and how many more announcements may come: each is
    /// late, and may come even so.
    pub(crate) failover_announced: bool,
    pub(crate) announcements_left: u32,
    /// The content of the `MOVING` that it received.
    moved: Option<String>,
    /// The number of the last push.
    event: u64,
    filled: Filled,
    /// The faults of new connections: cancelled when this client opens one.
    faults: Vec<ConnectionFaults>,
    /// The number of commands answered when the connection was opened.
    answered_before: usize,
    /// Commands sent and answered in all, and the number sent when the session was last disturbed.
    sent: usize,
    answered: usize,
    disturbed_at: usize,
}

impl<'a> ModelClient<'a> {
    pub(crate) fn new(
        proxy: &'a TestProxy,
        rules: GameRules,
        faults: Vec<ConnectionFaults>,
    ) -> Self {
        let stream = proxy.client();
        let expected = ModelConnection::new(rules.servers_know);
        Self {
            proxy,
            rules,
            stream,
            received: Vec::new(),
            now: expected.clone(),
            expected,
            owed: VecDeque::new(),
            acknowledged: Vec::new(),
            unknown: Vec::new(),
            refused: Vec::new(),
            is_refused: false,
            may_end: false,
            elsewhere: BTreeSet::new(),
            last_message: (0, BTreeSet::new()),
            failover_announced: false,
            announcements_left: 0,
            moved: None,
            event: 0,
            filled: Filled::default(),
            faults,
            answered_before: 0,
            sent: 0,
            answered: 0,
            disturbed_at: 0,
        }
    }

    pub(crate) fn send(&mut self, command: &[String]) {
        let page: Vec<String>;
        let command = if command == ["SCAN", "next"] {
            page = self.expected.next_page().split(' ').map(str::to_owned).collect();
            &page
        } else {
            command
        };
        let mut numbers = Vec::new();
        let frames = self.expected.answer_through(command, &mut numbers, self.rules.notifies);
        let (state_after, resets) = (self.expected.clone(), command[0] == "RESET");
        let (command_sent, received) = (command.to_vec(), String::new());
        self.owed.push_back(OwedReply {
            command: command_sent,
            frames,
            received,
            numbers,
            state_after,
            resets,
            begun: false,
        });
        self.sent += 1;
        // The connection may be closed; that is noticed when the reply is read.
        drop(self.stream.write_all(encode(command).as_bytes()));
    }

    /// Reads the replies to everything sent so far. Whether the connection is still open.
    pub(crate) fn read_replies(&mut self) -> bool {
        while let Some(owed) = self.owed.front() {
            let (may_end, owed) = (self.may_end, owed.frames.clone());
            if !self.receive_frame() {
                assert!(may_end, "a session with nothing in flight was closed; owed {owed:?}");
                return false;
            }
        }
        if self.is_refused {
            self.wait_for_end();
            return false;
        }
        if self.is_settled() {
            // A later command was answered: the connection has survived.
            self.may_end = false;
        }
        true
    }

    /// Receives a message, by every kind of subscription, that was published where the session
    /// certainly is.
    pub(crate) fn receive_message(&mut self, channel: &str, message: u32) {
        let mut expected: BTreeSet<String> =
            self.now.frames_of(channel, message).into_iter().collect();
        while !expected.is_empty() {
            assert!(self.receive_frame(), "closed before {expected:?}");
            if self.last_message.0 == message {
                expected = &expected - &self.last_message.1;
            }
        }
    }

    /// Waits for the end, which must come.
    pub(crate) fn wait_for_end(&mut self) {
        while self.receive_frame() {}
    }

    /// Whether something sent since the last disturbance was answered: the session is connected to
    /// its present server, and complete.
    pub(crate) fn is_settled(&self) -> bool {
        self.answered > self.disturbed_at
    }

    /// Whether a command was answered over this connection: faults of new connections do not affect
    /// it.
    pub(crate) fn is_established(&self) -> bool {
        self.answered > self.answered_before
    }

    /// No reply is owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether it is sent notifications, and to where it is asked to move.
    pub(crate) fn agreement_now(&self) -> Agreement {
        if self.rules.notifies { self.now.agreement() } else { Agreement::Off }
    }

    /// Receives until a failover was announced, or its end.
    pub(crate) fn wait_for_failover_push(&mut self, of_a_failover: bool) {
        while self.failover_announced != of_a_failover {
            assert!(self.receive_frame(), "closed before the push");
        }
    }

    /// Receives until it was asked to move. Returns the address as it was sent.
    pub(crate) fn wait_for_moving_push(&mut self) -> String {
        while self.moved.is_none() {
            assert!(self.receive_frame(), "closed before the push");
        }
        self.moved.clone().unwrap_or_default()
    }

    /// Waits until the first byte of something is readable.
    pub(crate) fn wait_for_a_byte(&mut self) {
        assert!(matches!(self.stream.peek(&mut [0]), Ok(1)), "closed before a reply");
    }

    pub(crate) fn is_silent(&mut self) -> bool {
        self.received.is_empty() && crate::testing::is_silent(&mut self.stream)
    }

    /// The session is carried, held, or loses its server. Records whether it may be closed by that,
    /// and that it is disturbed.
    pub(crate) fn disturb(&mut self) {
        self.may_end |= !self.owed.is_empty() || !self.expected.is_free(self.rules.subscriptions);
        self.note_disturbance();
    }

    /// It is no longer known to which server the session is connected.
    pub(crate) fn note_disturbance(&mut self) {
        self.disturbed_at = self.sent;
    }

    /// Takes one frame as what it must be. False at the end, after which there is a new connection.
    fn receive_frame(&mut self) -> bool {
        let len = loop {
            if let Some(len) = frame(&self.received) {
                break len;
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(read @ 1..) => self.received.extend_from_slice(&chunk[..read]),
                Ok(_) => {
                    // A client library may count the failovers that were announced to it, across
                    // connections.
                    let server_agreed = self.failover_announced
                        && self.received.is_empty()
                        && self.agreement_now() != Agreement::Off;
                    assert!(!server_agreed, "closed, and no push that the failover is over");
                    return self.end();
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return self.end(),
                Err(error) => {
                    panic!(
                        "neither a reply nor an end: {error}; owed {:?}",
                        self.owed.front().map(|it| &it.frames)
                    )
                }
            }
        };
        let frame: Vec<u8> = self.received.drain(..len).collect();
        self.take(&String::from_utf8(frame).unwrap());
        true
    }

    /// The bytes before the end must be a part of what was owed.
    fn end(&mut self) -> bool {
        let owed = self.owed.front().map_or("", |it| it.frames.as_str());
        let received = String::from_utf8_lossy(&self.received).into_owned();
        // It may also be part of a message; or half of the server's refusal, which is replaced only
        // when it is complete.
        let message = !received.is_empty() && received.contains("message\r\n");
        let refusal = owed == "+OK\r\n" && UNKNOWN.starts_with(&received);
        assert!(
            message || refusal || after(owed, &received, false).is_some(),
            "{received:?} and the end, instead of {owed:?}"
        );
        self.unknown.extend(self.owed.drain(..).flat_map(|it| it.numbers));
        self.received.clear();
        (self.may_end, self.is_refused) = (false, false);
        if self.moved.is_none() && self.proxy.drain.phase() == drain::Phase::Serving {
            self.faults.iter().for_each(ConnectionFaults::end);
            self.stream = self.proxy.client();
        }
        self.filled = Filled::default();
        self.answered_before = self.sent;
        self.expected = ModelConnection::new(self.rules.servers_know);
        self.now = self.expected.clone();
        (self.failover_announced, self.announcements_left) = (false, 0);
        (self.answered, self.disturbed_at) = (self.sent, self.sent);
        false
    }

    fn take(&mut self, frame: &str) {
        let lines: Vec<&str> = frame.split("\r\n").collect();
        match (lines[0], lines.get(2)) {
            (">4", Some(&"FAILING_OVER")) => self.take_push(MaintenanceKind::FailingOver, &lines),
            (">3", Some(&"FAILED_OVER")) => self.take_push(MaintenanceKind::FailedOver, &lines),
            (">4", Some(&"MOVING")) => self.take_push(MaintenanceKind::Moving, &lines),
            (_, Some(&("message" | "pmessage" | "smessage"))) => self.take_message(frame, &lines),
            _ => self.take_answer(frame),
        }
    }

    fn take_answer(&mut self, frame: &str) {
        let Some(owed) = self.owed.front_mut() else { panic!("no command was sent for {frame:?}") };
        let error = frame.strip_prefix("-EXECABORT Transaction discarded because of: ");
        if error.unwrap_or(&frame[1..]).starts_with("LOADING This connection cannot continue") {
            assert!(self.may_end && !owed.begun, "refused instead of {:?}", owed.frames);
            self.is_refused = true;
            self.refused.extend(self.owed.pop_front().into_iter().flat_map(|it| it.numbers));
            return;
        }
        assert!(!self.is_refused, "{frame:?} after a refusal");
        let rest = after(&owed.frames, frame, true).map(str::to_owned);
        let Some(rest) = rest else { panic!("{frame:?} instead of {:?}", owed.frames) };
        (owed.frames, owed.begun) = (rest, true);
        owed.received += frame;
        if !owed.frames.is_empty() {
            return;
        }
        if let Some(owed) = self.owed.pop_front() {
            self.filled.take(&owed.command, &owed.received);
            self.acknowledged.extend(owed.numbers);
            self.now = owed.state_after;
            self.failover_announced &= !owed.resets;
            self.answered += 1;
        }
    }

    fn take_message(&mut self, frame: &str, lines: &[&str]) {
        let tail = &lines[lines.len() - 4..];
        let (channel, message) = (tail[0], tail[2].parse().unwrap());
        let may =
            |it: &ModelConnection| it.frames_of(channel, message).iter().any(|it| it == frame);
        // Between two confirmations it may already be subscribed to one channel, or still to the
        // other.
        let between = self.owed.front().is_some_and(|owed| owed.begun && may(&owed.state_after));
        assert!(
            between || may(&self.now),
            "{frame:?} is a message that this client is not subscribed to"
        );
        assert!(
            !self.elsewhere.contains(&message),
            "{frame:?} was published where this session is not"
        );
        if self.last_message.0 != message {
            assert!(
                self.last_message.0 < message,
                "{frame:?} was received after {:?}",
                self.last_message
            );
            self.last_message = (message, BTreeSet::new());
        }
        assert!(self.last_message.1.insert(frame.to_owned()), "{frame:?} was received twice");
    }

    fn take_push(&mut self, kind: MaintenanceKind, lines: &[&str]) {
        assert_ne!(
            self.agreement_now(),
            Agreement::Off,
            "{lines:?} to a client that did not agree to it"
        );
        let number: u64 = lines[3][1..].parse().unwrap();
        assert!(number >= self.event, "{lines:?} is older than {}", self.event);
        self.event = number;
        match kind {
            MaintenanceKind::FailingOver => {
                assert!(
                    self.announcements_left > 0 && !self.failover_announced,
                    "the same failover was announced twice, or none took place"
                );
                self.failover_announced = true;
                self.announcements_left -= 1;
                assert_eq!(lines[4..], [":10", "$2", "[]", ""]);
            }
            MaintenanceKind::FailedOver => {
                assert!(
                    self.failover_announced,
                    "the end of a failover was announced and not its beginning"
                );
                self.failover_announced = false;
                assert_eq!(lines[4..], ["$2", "[]", ""]);
            }
            MaintenanceKind::Moving => {
                assert!(
                    self.proxy.drain.phase() >= drain::Phase::Draining,
                    "the proxy is not draining"
                );
                // After a carry the same event is announced again.
                let again = self.moved.replace(lines[5..].join(" "));
                assert!(again.is_none() || again == self.moved, "{again:?}, then {:?}", self.moved);
            }
        }
    }
}
