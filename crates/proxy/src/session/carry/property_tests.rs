//! Property: clients do not notice master changes. A client sends any commands, with failovers,
//! crashes and kicks at any point. It never sees a reply that belongs to another command, a lost or
//! duplicate reply, a push inside a frame, a message of a channel that it is not subscribed to, or
//! a command that ran under another identity, twice, or although it was refused. A session with
//! nothing in flight and nothing that pins it never loses its connection, nor a subscription,
//! unless its server closed it on purpose: then it does lose it.
//!
//! The property was checked by breaking the program and putting it right again:
//!
//! | Broken | Seen as |
//! |---|---|
//! | pushes are written at any position in the replies (`maintenance/pending.rs`, `take_due`) | a push in a frame |
//! | what the client was notified of is not carried (`resp`, `take_over`) | no `FAILED_OVER` |
//! | no push before an end (`maintenance/pending.rs`, `last_push`) | the end, and no `FAILED_OVER` |
//! | that push comes after the end that the master's brings (`session/end`, `append_last_push`) | the same, on a busy machine |
//! | what follows a dropped reply is read (`pump/last_replies.rs`) | a confirmation before the replies to earlier requests, on a busy machine |
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
//! | a command in flight is refused (`session/end`, `is_refused_at`) | a command that was refused and ran |
//! | the server's own agreement does not pin (`resp`) | a connection that lost its agreement |

use proptest::prelude::{ProptestConfig, prop, proptest};

use crate::session::carry::testing::client::{GameRules, ModelClient};
use crate::session::carry::testing::model::Agreement;
use crate::session::carry::testing::steps::{GameStep, send, steps};
use crate::session::carry::testing::{ExecutionLog, ModelServer};
use crate::testing::tls_client::TestCa;
use crate::testing::{SOON, TestProxy, destination};
use crate::{EndReason, Options, Subscriptions};

/// The servers and their state.
struct Game {
    servers: [ModelServer; 2],
    publisher: target::TargetWriter,
    master: usize,
    number: u32,
    held: bool,
    dead: bool,
    /// The master has closed connections while the gate was closed.
    kicked: bool,
    /// The reply under way may have stopped half-way.
    stopped_halfway: bool,
}

impl Game {
    fn number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    fn echo(&mut self, client: &mut ModelClient<'_>) {
        client.send(&["ECHO".to_owned(), self.number().to_string()]);
    }

    fn master(&self) -> &ModelServer {
        &self.servers[self.master]
    }

    /// Reads the replies to everything sent. Whether the connection is still open.
    fn read_replies(&mut self, client: &mut ModelClient<'_>) -> bool {
        self.master().release();
        self.stopped_halfway = false;
        client.read_replies()
    }

    /// Whether the client is certainly connected to the master, and has read everything sent to it.
    fn is_at_rest(&mut self, client: &mut ModelClient<'_>) -> bool {
        !self.held
            && !self.dead
            && client.is_settled()
            && self.read_replies(client)
            && client.is_settled()
    }

    fn step(&mut self, step: GameStep, client: &mut ModelClient<'_>) {
        match step {
            GameStep::Send(command) => client.send(&command),
            GameStep::Echo => self.echo(client),
            // While no server may answer there is nothing to read.
            GameStep::ReadReplies | GameStep::Publish(_) if self.held || self.dead => {}
            GameStep::ReadReplies => drop(self.read_replies(client)),
            GameStep::Publish(channel) => {
                client.send(&["PING".to_owned()]);
                self.read_replies(client);
                let number = self.number();
                self.master().publish(&channel, number);
                client.receive_message(&channel, number);
            }
            GameStep::PublishAnywhere(channel, here) => {
                let number = self.number();
                let at = if here { self.master } else { 1 - self.master };
                if !here && client.is_settled() {
                    client.elsewhere.insert(number);
                }
                self.servers[at].publish(&channel, number);
            }
            GameStep::StopHalfway => self.stop_halfway(client),
            GameStep::Hold(wait) => self.hold(wait, client),
            GameStep::Release => {
                // A session that notices the kick only now cannot know that the gate was closed.
                client.may_end |= self.kicked;
                self.publisher.release();
                client.note_disturbance();
                (self.held, self.kicked) = (false, false);
            }
            GameStep::Kick if self.dead => {}
            GameStep::Kick => self.kick(client),
            GameStep::Crash(_) if self.dead => {}
            GameStep::Crash(wait) => self.crash(wait, client),
            GameStep::Commit => self.commit(client),
            // Only an established session is protected from noticing.
            GameStep::RefuseConnections(..) if !client.is_established() => {}
            GameStep::RefuseConnections(fault, count, here) => {
                let at = if here { self.master } else { 1 - self.master };
                self.servers[at].faults.begin(fault, count);
                // The client is notified that this takes time, once per attempt to connect.
                client.announcements_left += u32::try_from(count).unwrap();
            }
        }
        // Sent to a crashing master, or after something that was.
        client.may_end |= self.dead && !client.is_idle();
    }

    fn stop_halfway(&mut self, client: &mut ModelClient<'_>) {
        if !self.is_at_rest(client) {
            return;
        }
        self.master().stop_replies_halfway();
        self.echo(client);
        self.master().wait_for_stopped_reply();
        client.wait_for_a_byte();
        self.stopped_halfway = true;
    }

    fn hold(&mut self, wait: bool, client: &mut ModelClient<'_>) {
        let notified = wait
            && !self.stopped_halfway
            && self.is_at_rest(client)
            && client.agreement_now() != Agreement::Off;
        client.announcements_left += 1;
        self.publisher.hold();
        self.held = true;
        if notified {
            client.wait_for_failover_push(true);
        }
    }

    fn kick(&mut self, client: &mut ModelClient<'_>) {
        // With a reply half-way, or with nothing in flight; and if the master can answer the
        // question whether it is alive.
        let must_end =
            (self.stopped_halfway || self.is_at_rest(client)) && !self.master().faults.is_any();
        if self.held {
            self.kicked = true;
            client.disturb();
        } else {
            client.may_end = true;
            // The session may be connecting to this master. A close during its replay is that of a
            // server that does not answer.
            client.announcements_left += u32::from(!client.is_settled());
            client.note_disturbance();
        }
        self.master().kick();
        if must_end && !self.held {
            client.wait_for_end();
        }
        self.stopped_halfway = false;
    }

    fn crash(&mut self, wait: bool, client: &mut ModelClient<'_>) {
        let notified = wait && self.is_at_rest(client) && client.agreement_now() != Agreement::Off;
        client.disturb();
        client.announcements_left += 1;
        self.master().kill();
        self.dead = true;
        if notified && !client.may_end {
            client.wait_for_failover_push(true);
        }
        self.stopped_halfway = false;
    }

    fn commit(&mut self, client: &mut ModelClient<'_>) {
        client.disturb();
        let old = self.master;
        self.master = 1 - old;
        self.publisher.commit(destination(self.master().addr));
        self.servers[old].revive();
        (self.held, self.dead, self.kicked, self.stopped_halfway) = (false, false, false, false);
    }
}

fn play(
    steps: Vec<GameStep>,
    rules: GameRules,
    to: Option<&str>,
    drained: bool,
    ca: Option<&TestCa>,
) {
    let log = ExecutionLog::default();
    let servers = [(); 2].map(|()| {
        let server = ModelServer::start(&log, rules.servers_know);
        match ca {
            Some(ca) => server.over_tls(ca.server()),
            None => server,
        }
    });
    let options = Options {
        subscriptions: rules.subscriptions,
        maintenance_push: rules.notifies,
        moving_to: to.map(Into::into),
        // A server that does not answer here has crashed, and never just waits for the processor.
        connect_timeout: SOON,
        ..Options::default()
    };
    let options = match ca {
        Some(ca) => ca.towards_targets(options),
        None => options,
    };
    let mut proxy = TestProxy::new(options);
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
        stopped_halfway: false,
    };
    let faults = game.servers.iter().map(|it| it.faults.clone()).collect();
    let mut client = ModelClient::new(&proxy, rules, faults);
    // At the end, everything the client may rely on is asked for once more.
    let known = ["CLIENT ID", "EVALSHA x 0", "SCAN next"].map(send);
    let last = [GameStep::Commit, GameStep::ReadReplies]
        .into_iter()
        .chain(known)
        .chain([GameStep::Echo, GameStep::ReadReplies]);
    for step in steps.into_iter().chain(last) {
        game.step(step, &mut client);
    }
    if client.agreement_now() != Agreement::Off {
        client.wait_for_failover_push(false);
    }
    assert!(client.is_idle() && client.is_silent(), "more than was requested");
    if drained {
        leave(&proxy, &mut game, &mut client, to);
    }
    let mut executed = log.lock().unwrap().clone();
    executed.sort_unstable();
    let count = executed.len();
    executed.dedup();
    assert_eq!(executed.len(), count, "a command ran twice");
    let ran = |number: &u32| executed.binary_search(number).is_ok();
    for number in &client.acknowledged {
        assert!(ran(number), "{number} was acknowledged and did not run");
    }
    for number in &client.refused {
        assert!(!ran(number), "{number} was refused and ran");
    }
    let known = client.acknowledged.len() + client.unknown.len();
    assert!(count <= known, "{count} commands ran, {known} were sent");
    assert_eq!(proxy.stats().closed_for(EndReason::Aborted), 0);
    assert_eq!(proxy.stats().target_tls.full > 0, ca.is_some());
}

/// The end of the game: the proxy is drained. A client that can be asked to move is asked, and
/// served until it does.
fn leave(proxy: &TestProxy, game: &mut Game, client: &mut ModelClient<'_>, to: Option<&str>) {
    let moves = match client.agreement_now() {
        Agreement::Off => false,
        Agreement::OtherAddress => to.is_some(),
        Agreement::SameAddress => true,
    };
    client.may_end = !moves;
    let here = client.agreement_now() == Agreement::SameAddress;
    game.echo(client);
    proxy.drain.request_stop(drain::StopRequest::DrainAtOnce);
    if moves {
        let moved = client.wait_for_moving_push();
        let address =
            to.filter(|_| !here).map_or("_ ".to_owned(), |to| format!("${} {to} ", to.len()));
        assert!(moved.ends_with(&address), "{moved:?}");
    }
    game.echo(client);
    client.may_end |= !moves;
    game.read_replies(client);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 224,
        max_shrink_iters: 100,
        max_shrink_time: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hides_master_changes_from_clients(
        steps in steps(),
        replay: bool,
        servers_know in prop::bool::weighted(0.2),
        notifies in prop::bool::weighted(0.9),
        named: bool,
        drained: bool,
    ) {
        let subscriptions = if replay { Subscriptions::Replay } else { Subscriptions::Close };
        let rules = GameRules { subscriptions, servers_know, notifies };
        play(steps, rules, named.then_some("redis.example:6379"), drained, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        max_shrink_iters: 100,
        max_shrink_time: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hides_changes_of_tls_masters_from_clients(
        steps in steps(),
        replay: bool,
        notifies in prop::bool::weighted(0.9),
        drained: bool,
    ) {
        let subscriptions = if replay { Subscriptions::Replay } else { Subscriptions::Close };
        let rules = GameRules { subscriptions, servers_know: false, notifies };
        play(steps, rules, None, drained, Some(&TestCa::new()));
    }
}
