//! Nobody notices: a client that does anything, with failovers and deaths at any point, never sees a reply that belongs to another
//! command, a lost or doubled one, or a command that ran as somebody else or twice. And who had nothing in flight and nothing
//! that pins it never loses its connection.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use crate::carry_testing::{Connection, Log, Server, encode};
use crate::testing::{House, destination, is_silent};
use crate::{Options, Reason, Subscriptions};

#[derive(Debug, Clone)]
enum Step {
    Say(Vec<String>),
    Who,
    /// Reads the answers to everything said so far.
    Listen,
    /// A message is published, at the master on which the client has just been answered.
    Publish(String),
    Hold,
    Commit,
    /// The master dies; the next commit is to the other one.
    Die,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let say = |words: &str| Just(Step::Say(words.split(' ').map(str::to_owned).collect()));
    let step = prop_oneof![
        8 => Just(Step::Who),
        8 => Just(Step::Listen),
        3 => Just(Step::Commit),
        2 => Just(Step::Hold),
        1 => Just(Step::Die),
        3 => any::<u8>().prop_map(|it| Step::Say(vec!["SELECT".into(), (it % 18).to_string()])),
        2 => any::<bool>().prop_map(|it| Step::Say(vec!["AUTH".into(), if it { "ann" } else { "bob" }.into(), "pw".into()])),
        1 => say("AUTH eve wrong"),
        2 => any::<u8>().prop_map(|it| Step::Say(vec!["CLIENT".into(), "SETNAME".into(), format!("n{it}")])),
        1 => say("HELLO 3"),
        1 => say("HELLO 2"),
        1 => say("RESET"),
        2 => say("MULTI"),
        2 => say("EXEC"),
        1 => say("DISCARD"),
        1 => say("WATCH k"),
        1 => say("UNWATCH"),
        3 => names(1..4).prop_map(|names| subscription("SUBSCRIBE", names)),
        1 => names(1..4).prop_map(|names| subscription("PSUBSCRIBE", names)),
        3 => names(1..3).prop_map(|names| subscription("UNSUBSCRIBE", names)),
        1 => names(0..2).prop_map(|names| subscription("PUNSUBSCRIBE", names)),
        1 => say("UNSUBSCRIBE"),
        4 => (0..4).prop_map(|it| Step::Publish(format!("c{it}"))),
    ];
    prop::collection::vec(step, 1..60)
}

fn names(many: std::ops::Range<usize>) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec((0..4).prop_map(|it| format!("c{it}")), many)
}

fn subscription(command: &str, mut names: Vec<String>) -> Step {
    names.insert(0, command.to_owned());
    Step::Say(names)
}

/// The client, and what it must see.
struct Client<'a> {
    house: &'a House,
    subscriptions: Subscriptions,
    stream: TcpStream,
    expected: Connection,
    /// Answers to come, each with the numbers that it says were executed.
    owed: VecDeque<(String, Vec<u32>)>,
    acknowledged: Vec<u32>,
    /// Said, and lost with its connection.
    unknown: Vec<u32>,
    /// The connection may end.
    may_end: bool,
    /// Commands said and answered in all, and how many had been said when something last happened.
    said: usize,
    heard: usize,
    happened_at: usize,
}

impl<'a> Client<'a> {
    fn new(house: &'a House, subscriptions: Subscriptions) -> Self {
        Self {
            house,
            subscriptions,
            stream: house.client(),
            expected: Connection::default(),
            owed: VecDeque::new(),
            acknowledged: Vec::new(),
            unknown: Vec::new(),
            may_end: false,
            said: 0,
            heard: 0,
            happened_at: 0,
        }
    }

    fn say(&mut self, command: &[String]) {
        let mut numbers = Vec::new();
        let answer = self.expected.answer(command, &mut numbers);
        self.owed.push_back((answer, numbers));
        self.said += 1;
        // It may have ended; that is seen when the answer is read.
        drop(self.stream.write_all(encode(command).as_bytes()));
    }

    fn listen(&mut self) {
        while let Some((answer, numbers)) = self.owed.pop_front() {
            let mut came = vec![0; answer.len()];
            if let Some(read) = read_or_end(&mut self.stream, &mut came) {
                assert!(answer.as_bytes().starts_with(&came[..read]), "{:?}", String::from_utf8_lossy(&came));
                assert!(self.may_end, "a session without anything in flight was ended; owed {answer:?}");
                self.unknown.extend(numbers);
                self.unknown.extend(self.owed.drain(..).flat_map(|(_, numbers)| numbers));
                (self.stream, self.expected, self.may_end) = (self.house.client(), Connection::default(), false);
                self.heard = self.said;
                return;
            }
            assert_eq!(String::from_utf8_lossy(&came), answer);
            self.acknowledged.extend(numbers);
            self.heard += 1;
        }
        if self.heard > self.happened_at {
            // What was said afterwards was answered: the connection has survived.
            self.may_end = false;
        }
    }

    /// The client has heard a message, if it is subscribed to that channel.
    fn hear(&mut self, channel: &str, message: u32) {
        let expected = self.expected.hears(channel, message);
        let mut came = vec![0; expected.len()];
        assert_eq!(read_or_end(&mut self.stream, &mut came), None, "ended before {expected:?}");
        assert_eq!(String::from_utf8_lossy(&came), expected);
    }

    /// The points are about to move, or the master to die.
    fn something_happens(&mut self) {
        self.may_end |= !self.owed.is_empty() || !self.expected.is_free(self.subscriptions);
        self.happened_at = self.said;
    }
}

/// Fills `buffer`; or how much came before the end.
fn read_or_end(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match stream.read(&mut buffer[at..]) {
            Ok(0) => return Some(at),
            Ok(read) => at += read,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Some(at),
            Err(error) => panic!("no answer and no end: {error}"),
        }
    }
    None
}

fn play(steps: Vec<Step>, subscriptions: Subscriptions) {
    let log = Log::default();
    let servers = [Server::start(&log), Server::start(&log)];
    let mut house = House::new(Options { subscriptions, ..Options::default() });
    house.commit(servers[0].addr);
    let (mut master, mut number) = (0, 0);
    let (mut held, mut dead) = (false, false);
    let mut points = std::mem::replace(&mut house.points, route::Points::new().0);
    let mut client = Client::new(&house, subscriptions);
    for step in steps.into_iter().chain([Step::Commit, Step::Listen, Step::Who, Step::Listen]) {
        match step {
            Step::Say(command) => client.say(&command),
            Step::Who => {
                number += 1;
                client.say(&["WHO".to_owned(), number.to_string()]);
            }
            // While nobody may answer there is nothing to hear.
            Step::Listen | Step::Publish(_) if held || dead => continue,
            Step::Listen => client.listen(),
            Step::Publish(channel) => {
                client.say(&["PING".to_owned()]);
                client.listen();
                number += 1;
                servers[master].publish(&channel, number);
                client.hear(&channel, number);
            }
            Step::Hold => {
                points.hold();
                held = true;
            }
            Step::Die if dead => continue,
            Step::Die => {
                client.something_happens();
                servers[master].kill();
                dead = true;
            }
            Step::Commit => {
                client.something_happens();
                let old = master;
                master = 1 - master;
                points.commit(destination(servers[master].addr));
                servers[old].revive();
                (held, dead) = (false, false);
            }
        }
        // Said to a dying master, or behind something that was.
        client.may_end |= dead && !client.owed.is_empty();
    }
    assert!(client.owed.is_empty() && is_silent(&mut client.stream), "more than was asked for");
    let mut executed = log.lock().unwrap().clone();
    executed.sort_unstable();
    let count = executed.len();
    executed.dedup();
    assert_eq!(executed.len(), count, "a command ran twice");
    for number in &client.acknowledged {
        assert!(executed.binary_search(number).is_ok(), "{number} was acknowledged and did not run");
    }
    let known = client.acknowledged.len() + client.unknown.len();
    assert!(count <= known, "{count} commands ran, {known} were asked for");
    assert_eq!(house.stats().closed_for(Reason::Aborted), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_client_does_and_whenever_the_points_move_nobody_notices(steps in steps(), replay: bool) {
        play(steps, if replay { Subscriptions::Replay } else { Subscriptions::Close });
    }
}
