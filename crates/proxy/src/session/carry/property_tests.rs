//! Property: clients do not notice master changes. A client sends any commands, with failovers,
//! crashes and kicks at any point. It never sees a reply that belongs to another command, a lost or
//! duplicate reply, a push inside a frame, a message of a channel that it is not subscribed to, or
//! a command that ran under another identity or twice. A session with nothing in flight and nothing
//! that pins it never loses its connection, nor a subscription, unless its server closed it on
//! purpose: then it does lose it.
//!
//! The property was checked by breaking the program and putting it right again:
//!
//! | Broken | Seen as |
//! |---|---|
//! | pushes are written at any position in the replies (`maintenance/pending.rs`, `take_due`) | a push in a frame |
//! | what the client was notified of is not carried (`resp`, `take_over`) | no `FAILED_OVER` |
//! | no push before an end (`maintenance/pending.rs`, `last_push`) | the end, and no `FAILED_OVER` |
//! | that push comes after the end that the master's brings (`session/end`, `append_last_push`) | the same, on a busy machine |
//! | a kick while the gate is closed counts as one (`session/connect.rs`) | a free session is closed |
//! | a kick is taken for a crash (`session/carry`, `open`) | a kicked client that is not closed |
//! | the handshake is agreed to in RESP2 (`resp`, `agree`) | `+OK` instead of a refusal |
//! | messages after the last confirmation are dropped (`resp`, `follow`) | a session is closed |
//! | no `SELECT` from database 8 on (`resp`, replay) | a session is closed |
//! | requests that were read and not forwarded are dropped (`session/end`) | a session is closed |
//! | a cursor does not pin its session (`resp`, `is_bound`) | an iteration that leaves out keys |
//! | `CLIENT ID`, `SCRIPT LOAD` or an unknown command does not pin its session (`resp`, `asked`) | another number, a script that is missing |
//! | nothing is replayed of a session without state, not even a `PING` (`resp`, replay) | the refusal of a full or busy server |
//! | "max number of clients" and `-BUSY` refuse a session (`resp`, `judge`) | a session is closed |
//! | the server's own agreement does not pin (`resp`) | a connection that lost its agreement |

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use crate::session::carry::testing::client::{Client, Rules};
use crate::session::carry::testing::model::Agreed;
use crate::session::carry::testing::{Excuse, Log, Server};
use crate::testing::{SOON, TestProxy, destination};
use crate::{EndReason, Options, Subscriptions};

#[derive(Debug, Clone)]
enum Step {
    Say(Vec<String>),
    Who,
    /// Reads the replies to everything sent so far.
    Listen,
    /// Publishes a message at the master, to which the client has just been connected.
    Publish(String),
    /// Publishes a message at the master or at the other server, whatever else is under way.
    Shout(String, bool),
    /// A reply stops half-way to the client; the next step that needs it releases it.
    Half,
    /// The gate closes; whether to wait for the notification that is due then.
    Hold(bool),
    /// The gate opens without a master change.
    Release,
    Commit,
    /// The master closes every connection, and stays alive.
    Kick,
    /// The master crashes; the next commit is to the other server.
    Die(bool),
    /// The master or the other server does not serve the next new connections.
    Refuse(Excuse, usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let channel = || (0..4).prop_map(|it| format!("c{it}"));
    let step = prop_oneof![
        9 => Just(Step::Who),
        9 => Just(Step::Listen),
        4 => Just(Step::Commit),
        4 => any::<bool>().prop_map(Step::Hold),
        2 => Just(Step::Release),
        2 => Just(Step::Kick),
        1 => any::<bool>().prop_map(Step::Die),
        3 => Just(Step::Half),
        4 => (0..3_usize, 1..4_usize, any::<bool>())
            .prop_map(|(it, count, here)| Step::Refuse([Excuse::Full, Excuse::Busy, Excuse::Loading][it], count, here)),
        4 => channel().prop_map(Step::Publish),
        3 => (channel(), any::<bool>()).prop_map(|(channel, here)| Step::Shout(channel, here)),
        24 => command().prop_map(|words| Step::Say(words.split(' ').map(str::to_owned).collect())),
    ];
    prop::collection::vec(step, 1..60)
}

fn command() -> impl Strategy<Value = String> {
    let say = |words: &str| Just(words.to_owned());
    let either = |one: &'static str, other: &'static str| {
        any::<bool>().prop_map(move |it| if it { one } else { other }.to_owned())
    };
    let handshake = (0..4_usize).prop_map(|it| {
        let agreed =
            ["OFF", "ON moving-endpoint-type none", "ON moving-endpoint-type internal-ip", "ON"]
                [it];
        format!("CLIENT MAINT_NOTIFICATIONS {agreed}")
    });
    let names = |command: &'static str, many: std::ops::Range<usize>| {
        prop::collection::vec((0..4).prop_map(|it| format!(" c{it}")), many)
            .prop_map(|it| command.to_owned() + &it.concat())
    };
    prop_oneof![
        3 => (0..18_u8).prop_map(|it| format!("SELECT {it}")),
        2 => either("AUTH ann pw", "AUTH bob pw"),
        1 => say("AUTH eve wrong"),
        2 => (0..99_u8).prop_map(|it| format!("CLIENT SETNAME n{it}")),
        1 => (0..99_u8).prop_map(|it| format!("CLIENT SETINFO LIB-NAME l{it}")),
        1 => either("CLIENT NO-TOUCH ON", "CLIENT NO-TOUCH OFF"),
        1 => either("READONLY", "READWRITE"),
        4 => say("HELLO 3"),
        1 => say("HELLO 2"),
        5 => handshake,
        1 => say("RESET"),
        3 => either("MULTI", "EXEC"),
        1 => either("EXEC", "DISCARD"),
        1 => either("WATCH k", "UNWATCH"),
        2 => either("SCAN 0", "SCAN next"),
        2 => say("SCAN next"),
        3 => either("CLIENT ID", "SCRIPT LOAD x"),
        1 => either("EVAL x 0", "EVALSHA x 0"),
        1 => say("MODULE.X"),
        3 => names("SUBSCRIBE", 1..4),
        1 => names("PSUBSCRIBE", 1..4),
        1 => names("SSUBSCRIBE", 1..4),
        2 => names("UNSUBSCRIBE", 0..3),
        1 => names("PUNSUBSCRIBE", 0..2),
        1 => names("SUNSUBSCRIBE", 0..2),
    ]
}

/// The servers and their state.
struct Game {
    servers: [Server; 2],
    publisher: target::TargetWriter,
    master: usize,
    number: u32,
    held: bool,
    dead: bool,
    /// The master has closed connections while the gate was closed.
    kicked: bool,
    /// The reply under way may have stopped half-way.
    halved: bool,
}

impl Game {
    fn number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn who(&mut self, client: &mut Client<'_>) {
        client.say(&["ECHO".to_owned(), self.number().to_string()]);
    }

    fn master(&self) -> &Server {
        &self.servers[self.master]
    }

    /// Reads the replies to everything sent. Whether the connection is still open.
    fn listen(&mut self, client: &mut Client<'_>) -> bool {
        self.master().go_on();
        self.halved = false;
        client.listen()
    }

    /// Whether the client is certainly connected to the master, and has read everything sent to it.
    fn is_at_rest(&mut self, client: &mut Client<'_>) -> bool {
        !self.held
            && !self.dead
            && client.is_settled()
            && self.listen(client)
            && client.is_settled()
    }

    fn step(&mut self, step: Step, client: &mut Client<'_>) {
        match step {
            Step::Say(command) => client.say(&command),
            Step::Who => self.who(client),
            // While no server may answer there is nothing to read.
            Step::Listen | Step::Publish(_) if self.held || self.dead => {}
            Step::Listen => drop(self.listen(client)),
            Step::Publish(channel) => {
                client.say(&["PING".to_owned()]);
                self.listen(client);
                let number = self.number();
                self.master().publish(&channel, number);
                client.hear(&channel, number);
            }
            Step::Shout(channel, here) => {
                let number = self.number();
                let at = if here { self.master } else { 1 - self.master };
                if !here && client.is_settled() {
                    client.elsewhere.insert(number);
                }
                self.servers[at].publish(&channel, number);
            }
            Step::Half => self.half(client),
            Step::Hold(wait) => self.hold(wait, client),
            Step::Release => {
                // A session that notices the kick only now cannot know that the gate was closed.
                client.may_end |= self.kicked;
                self.publisher.release();
                client.moves();
                (self.held, self.kicked) = (false, false);
            }
            Step::Kick if self.dead => {}
            Step::Kick => self.kick(client),
            Step::Die(_) if self.dead => {}
            Step::Die(wait) => self.die(wait, client),
            Step::Commit => self.commit(client),
            // Only an established session is protected from noticing.
            Step::Refuse(..) if !client.has_arrived() => {}
            Step::Refuse(excuse, count, here) => {
                let at = if here { self.master } else { 1 - self.master };
                self.servers[at].reluctance.begin(excuse, count);
                // The client is notified that this takes time, once per attempt to connect.
                client.alarms += u32::try_from(count).unwrap();
            }
        }
        // Sent to a crashing master, or after something that was.
        client.may_end |= self.dead && !client.is_idle();
    }

    fn half(&mut self, client: &mut Client<'_>) {
        if !self.is_at_rest(client) {
            return;
        }
        self.master().stop_half_way();
        self.who(client);
        self.master().wait_for_a_half();
        client.wait_for_a_byte();
        self.halved = true;
    }

    fn hold(&mut self, wait: bool, client: &mut Client<'_>) {
        let told =
            wait && !self.halved && self.is_at_rest(client) && client.is_told() != Agreed::No;
        client.alarms += 1;
        self.publisher.hold();
        self.held = true;
        if told {
            client.wait_to_be_told(true);
        }
    }

    fn kick(&mut self, client: &mut Client<'_>) {
        // With a reply half-way, or with nothing in flight; and if the master can answer the
        // question whether it is alive.
        let must_end =
            (self.halved || self.is_at_rest(client)) && !self.master().reluctance.is_any();
        if self.held {
            self.kicked = true;
            client.something_happens();
        } else {
            client.may_end = true;
            // The session may be connecting to this master. A close during its replay is that of a
            // server that does not answer.
            client.alarms += u32::from(!client.is_settled());
            client.moves();
        }
        self.master().kick();
        if must_end && !self.held {
            client.hear_the_end();
        }
        self.halved = false;
    }

    fn die(&mut self, wait: bool, client: &mut Client<'_>) {
        let told = wait && self.is_at_rest(client) && client.is_told() != Agreed::No;
        client.something_happens();
        client.alarms += 1;
        self.master().kill();
        self.dead = true;
        if told && !client.may_end {
            client.wait_to_be_told(true);
        }
        self.halved = false;
    }

    fn commit(&mut self, client: &mut Client<'_>) {
        client.something_happens();
        let old = self.master;
        self.master = 1 - old;
        self.publisher.commit(destination(self.master().addr));
        self.servers[old].revive();
        (self.held, self.dead, self.kicked, self.halved) = (false, false, false, false);
    }
}

fn play(steps: Vec<Step>, rules: Rules, to: Option<&str>, drained: bool) {
    let log = Log::default();
    let servers = [Server::start(&log, rules.known), Server::start(&log, rules.known)];
    let mut proxy = TestProxy::new(Options {
        subscriptions: rules.subscriptions,
        maintenance_push: rules.told,
        moving_to: to.map(Into::into),
        // A server that does not answer here has crashed, and never just waits for the processor.
        connect_timeout: SOON,
        ..Options::default()
    });
    proxy.commit(servers[0].addr);
    let publisher = std::mem::replace(&mut proxy.publisher, target::TargetWriter::new().0);
    let mut game = Game {
        servers,
        publisher,
        master: 0,
        number: 0,
        held: false,
        dead: false,
        kicked: false,
        halved: false,
    };
    let reluctance = game.servers.iter().map(|it| it.reluctance.clone()).collect();
    let mut client = Client::new(&proxy, rules, reluctance);
    // At the end, everything the client may rely on is asked for once more.
    let say = |words: &str| Step::Say(words.split(' ').map(str::to_owned).collect());
    let known = ["CLIENT ID", "EVALSHA x 0", "SCAN next"].map(say);
    let last =
        [Step::Commit, Step::Listen].into_iter().chain(known).chain([Step::Who, Step::Listen]);
    for step in steps.into_iter().chain(last) {
        game.step(step, &mut client);
    }
    if client.is_told() != Agreed::No {
        client.wait_to_be_told(false);
    }
    assert!(client.is_idle() && client.is_silent(), "more than was asked for");
    if drained {
        leave(&proxy, &mut game, &mut client, to);
    }
    let mut executed = log.lock().unwrap().clone();
    executed.sort_unstable();
    let count = executed.len();
    executed.dedup();
    assert_eq!(executed.len(), count, "a command ran twice");
    for number in &client.acknowledged {
        assert!(
            executed.binary_search(number).is_ok(),
            "{number} was acknowledged and did not run"
        );
    }
    let known = client.acknowledged.len() + client.unknown.len();
    assert!(count <= known, "{count} commands ran, {known} were asked for");
    assert_eq!(proxy.stats().closed_for(EndReason::Aborted), 0);
}

/// The end of the game: the proxy is drained. A client that can be asked to move is asked, and
/// served until it does.
fn leave(proxy: &TestProxy, game: &mut Game, client: &mut Client<'_>, to: Option<&str>) {
    let moves = match client.is_told() {
        Agreed::No => false,
        Agreed::There => to.is_some(),
        Agreed::Here => true,
    };
    client.may_end = !moves;
    let here = client.is_told() == Agreed::Here;
    game.who(client);
    proxy.drain.order(drain::StopRequest::DrainAtOnce);
    if moves {
        let moved = client.wait_to_be_moved();
        let address =
            to.filter(|_| !here).map_or("_ ".to_owned(), |to| format!("${} {to} ", to.len()));
        assert!(moved.ends_with(&address), "{moved:?}");
    }
    game.who(client);
    client.may_end |= !moves;
    game.listen(client);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 224, max_shrink_iters: 100, max_shrink_time: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hides_master_changes_from_clients(
        steps in steps(),
        replay: bool,
        known in prop::bool::weighted(0.2),
        told in prop::bool::weighted(0.9),
        named: bool,
        drained: bool,
    ) {
        let subscriptions = if replay { Subscriptions::Replay } else { Subscriptions::Close };
        play(steps, Rules { subscriptions, known, told }, named.then_some("redis.example:6379"), drained);
    }
}
