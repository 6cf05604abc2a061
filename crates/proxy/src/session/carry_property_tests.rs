//! Nobody notices: a client that does anything, with failovers, deaths and kicks at any point,
//! never sees a reply that belongs to another command, a lost or doubled one, a push inside a
//! frame, a message of a channel that it is not subscribed to, or a command that ran as somebody
//! else or twice. And who had nothing in flight and nothing that pins it never loses its
//! connection, nor a subscription, unless its server ended it on purpose: then it does lose it.
//!
//! What it is worth, by what was broken in the program and put right again:
//!
//! | Broken | Seen as |
//! |---|---|
//! | pushes are written wherever the replies stand (`pump/notices.rs`, `words_due`) | a push in a frame |
//! | what the client was told does not go along (`novel.rs`, `take_over`) | no `FAILED_OVER` |
//! | no word before an end (`pump/ending.rs`, `last_word`) | the end, and no `FAILED_OVER` |
//! | that word comes behind the end that the master's brings (`pump.rs`, `have_the_last_word`) | the same, on a busy machine |
//! | a kick while the gate is shut is taken for one (`carry.rs`) | a free session is ended |
//! | a kick is taken for a crash (`carry.rs`, `attempt`) | a kicked client that is not ended |
//! | the handshake is agreed to in RESP2 (`book/notices.rs`, `agree`) | `+OK` instead of a refusal |
//! | messages behind the last confirmation are dropped (`replay.rs`, `follow`) | a session is ended |
//! | no `SELECT` from database 8 on (`replay.rs`) | a session is ended |
//! | requests that were read and not forwarded are dropped (`pump/ending.rs`) | a session is ended |
//! | a cursor does not bind its session (`bound.rs`, `is_bound`) | an iteration that leaves out keys |
//! | `CLIENT ID`, `SCRIPT LOAD` or an unknown command does not bind its session (`bound.rs`, `asked`) | another number, a script that vanished |
//! | nothing is replayed of a session without state, not even a `PING` (`replay.rs`) | the refusal of a full or busy server |
//! | "max number of clients" and `-BUSY` refuse a session (`replay.rs`, `judge`) | a session is ended |
//! | the server's own agreement does not pin (`novel.rs`) | a connection that is not what it was |

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use crate::session::carry_client::{Client, Rules};
use crate::session::carry_model::Agreed;
use crate::session::carry_testing::{Excuse, Log, Server};
use crate::testing::{House, SOON, destination};
use crate::{EndReason, Options, Subscriptions};

#[derive(Debug, Clone)]
enum Step {
    Say(Vec<String>),
    Who,
    /// Reads the answers to everything said so far.
    Listen,
    /// A message is published, at the master on which the client has just been answered.
    Publish(String),
    /// A message is published, at the master or at the other server, whatever else goes on.
    Shout(String, bool),
    /// An answer stops half-way on its way to the client; the next step that needs it lets it go
    /// on.
    Half,
    /// The gate shuts; whether it is waited for what the client is to be told then.
    Hold(bool),
    /// It opens again, and nothing has moved.
    Release,
    Commit,
    /// The master ends every connection, and lives.
    Kick,
    /// The master dies; the next commit is to the other one.
    Die(bool),
    /// The master or the other server does not serve so many new connections.
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

/// The servers, and what they are up to.
struct Game {
    servers: [Server; 2],
    points: target::TargetWriter,
    master: usize,
    number: u32,
    held: bool,
    dead: bool,
    /// The master has ended connections while the gate was shut.
    kicked: bool,
    /// The answer under way may have stopped half-way.
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

    /// The answers to all that was said. Whether the connection still stands.
    fn listen(&mut self, client: &mut Client<'_>) -> bool {
        self.master().go_on();
        self.halved = false;
        client.listen()
    }

    /// Whether the client is certainly at the master, and has heard all that it was told.
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
            // While nobody may answer there is nothing to hear.
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
                // Who hears of a kick only now cannot know that the gate was shut.
                client.may_end |= self.kicked;
                self.points.release();
                client.moves();
                (self.held, self.kicked) = (false, false);
            }
            Step::Kick if self.dead => {}
            Step::Kick => self.kick(client),
            Step::Die(_) if self.dead => {}
            Step::Die(wait) => self.die(wait, client),
            Step::Commit => self.commit(client),
            // Only a session that has arrived is kept from noticing.
            Step::Refuse(..) if !client.has_arrived() => {}
            Step::Refuse(excuse, count, here) => {
                let at = if here { self.master } else { 1 - self.master };
                self.servers[at].reluctance.begin(excuse, count);
                // It is told that this takes time, once on each way to a server.
                client.alarms += u32::try_from(count).unwrap();
            }
        }
        // Said to a dying master, or behind something that was.
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
        self.points.hold();
        self.held = true;
        if told {
            client.wait_to_be_told(true);
        }
    }

    fn kick(&mut self, client: &mut Client<'_>) {
        // With an answer half-way, or without anything under way.
        // And if nothing keeps the master from saying that it lives.
        let must_end =
            (self.halved || self.is_at_rest(client)) && !self.master().reluctance.is_any();
        if self.held {
            self.kicked = true;
            client.something_happens();
        } else {
            client.may_end = true;
            // It may be on its way to this master, where an end in the middle of its arrival is
            // that of one that does not answer.
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
        self.points.commit(destination(self.master().addr));
        self.servers[old].revive();
        (self.held, self.dead, self.kicked, self.halved) = (false, false, false, false);
    }
}

fn play(steps: Vec<Step>, rules: Rules, to: Option<&str>, drained: bool) {
    let log = Log::default();
    let servers = [Server::start(&log, rules.known), Server::start(&log, rules.known)];
    let mut house = House::new(Options {
        subscriptions: rules.subscriptions,
        maintenance_push: rules.told,
        moving_to: to.map(Into::into),
        // A server that does not answer here is one that has died, and never one that waits for the
        // processor.
        connect_timeout: SOON,
        ..Options::default()
    });
    house.commit(servers[0].addr);
    let points = std::mem::replace(&mut house.points, target::TargetWriter::new().0);
    let mut game = Game {
        servers,
        points,
        master: 0,
        number: 0,
        held: false,
        dead: false,
        kicked: false,
        halved: false,
    };
    let reluctance = game.servers.iter().map(|it| it.reluctance.clone()).collect();
    let mut client = Client::new(&house, rules, reluctance);
    // At the end, whatever the client may count on is asked for once more.
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
        leave(&house, &mut game, &mut client, to);
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
    assert_eq!(house.stats().closed_for(EndReason::Aborted), 0);
}

/// The end of the game: the house is drained. Who can be told to move is, and is served until it
/// does.
fn leave(house: &House, game: &mut Game, client: &mut Client<'_>, to: Option<&str>) {
    let moves = match client.is_told() {
        Agreed::No => false,
        Agreed::There => to.is_some(),
        Agreed::Here => true,
    };
    client.may_end = !moves;
    let here = client.is_told() == Agreed::Here;
    game.who(client);
    house.drain.request_stop(drain::StopRequest::DrainAtOnce);
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
    fn whatever_a_client_does_and_whenever_the_points_move_nobody_notices(
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
