//! Carries a conversation out on both sides and compares. Thin: what is compared is decided in
//! `reply`, what is sent in `generator`.
//!
//! A step is sent to both sides, and the next one only after its replies are complete on both. So
//! the servers see the requests of different clients in the same order. The direct side says how
//! many replies there are, because it is right by definition.

use std::fmt;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::conversation::{Action, Conversation, Request, Step, Wait, Wire};
use super::exceptions::Treatment;
use super::reply::{CLOSED, agreed, compared, is_unasked, readable};
use super::rig::{PATIENCE, Rig};

/// After this silence the direct server is taken to owe no further reply.
const SILENCE: Duration = Duration::from_secs(2);

/// From this many errors on, a server may end a client that has not authenticated; whether it does
/// depends on how much it reads at a time.
const MANY_ERRORS: usize = 20;

/// Longer than a request of a conversation blocks.
const BLOCKED: Duration = Duration::from_secs(5);

/// A difference between both sides.
#[derive(Debug, Clone)]
pub(super) struct Difference {
    /// The number of the step, from 1.
    step: usize,
    what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after step {}: {}", self.step, self.what)
    }
}

/// A client on both sides.
struct Pair {
    direct: Connection,
    proxied: Connection,
    /// What was sent and how its replies are compared, in their order.
    asked: Vec<(Treatment, String)>,
    /// Replies of the direct side, if every request that is an array is answered.
    most: usize,
    /// Frames, and replies among them, that are compared already.
    compared: usize,
    answered: usize,
    is_cut: bool,
    is_resp3: bool,
    /// A request was answered that should not have been.
    is_opaque: bool,
    /// The numbers of the connections, as `CLIENT ID` has told them.
    ids: [String; 2],
}

/// One conversation.
struct Driver<'a> {
    rig: &'a mut Rig,
    pairs: Vec<Option<Pair>>,
    /// A client has turned tracking off. If it turns it on again, a server still knows what it had
    /// read before, unless it has another connection now.
    left_tracking: bool,
}

/// Carries out a conversation on reset servers.
///
/// # Errors
/// The first difference.
pub(super) fn run(rig: &mut Rig, conversation: &Conversation) -> Result<(), Difference> {
    let clients = conversation.steps.iter().map(|step| step.client + 1).max().unwrap_or(0);
    let begin = |what| Difference { step: 0, what };
    rig.reset().map_err(begin)?;
    let pairs = (0..clients).map(|_| None).collect();
    let mut driver = Driver { rig, pairs, left_tracking: false };
    for (at, step) in conversation.steps.iter().enumerate() {
        driver.step(step).map_err(|what| Difference { step: at + 1, what })?;
    }
    driver.end().map_err(|what| Difference { step: conversation.steps.len(), what })
}

impl Driver<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.action {
            Action::Send { requests, cuts, wait } => {
                return self.send(step.client, requests, cuts, *wait);
            }
            Action::Await => self.await_direct(step.client, BLOCKED),
            Action::Leave { reset } => self.leave(step.client, *reset)?,
            Action::Operator(words) => self.rig.operate(words),
            Action::Pause(time) => harness::pause(Duration::from_millis(*time)),
            Action::Failover => self.rig.failover()?,
        }
        self.compare()
    }

    fn pair(&mut self, client: usize) -> Option<&mut Pair> {
        self.pairs.get_mut(client)?.as_mut()
    }

    fn connect(&mut self, client: usize) -> Result<(), String> {
        if self.pair(client).is_some_and(|pair| !pair.direct.is_closed) {
            return Ok(());
        }
        let direct = Connection::open(self.rig.direct_addr())?;
        let proxied = Connection::open(self.rig.proxied_addr())?;
        let asked = Vec::new();
        let pair = Pair {
            direct,
            proxied,
            asked,
            most: 0,
            compared: 0,
            answered: 0,
            is_cut: false,
            is_resp3: false,
            is_opaque: false,
            ids: ["0", "0"].map(str::to_owned),
        };
        if let Some(place) = self.pairs.get_mut(client) {
            *place = Some(pair);
        }
        Ok(())
    }

    fn send(
        &mut self,
        client: usize,
        requests: &[Request],
        cuts: &[usize],
        wait: Wait,
    ) -> Result<(), String> {
        self.connect(client)?;
        let leaves = |it: &Request| it.to_string().eq_ignore_ascii_case("CLIENT TRACKING OFF");
        self.left_tracking |= requests.iter().any(leaves);
        let blocked = if wait == Wait::Blocked { self.rig.blocked_directly() } else { 0 };
        let bytes = [0, 1].map(|side| {
            let id = |pair: &Option<Pair>| pair.as_ref().map_or("0".into(), |it| it.id(side));
            let ids: Vec<String> = self.pairs.iter().map(id).collect();
            requests.iter().flat_map(|it| it.with_ids(&ids).bytes()).collect::<Vec<u8>>()
        });
        let Some(pair) = self.pair(client) else { return Ok(()) };
        for request in requests {
            let one = (request.treatment, request.to_string());
            pair.asked.extend(std::iter::repeat_n(one, request.replies));
        }
        let whole = |it: &&Request| matches!(it.wire, Wire::Words(_));
        pair.most = pair.direct.replies + requests.iter().filter(whole).count();
        let mut from = 0;
        for to in cuts.iter().copied().chain([usize::MAX]) {
            for (connection, bytes) in [&mut pair.direct, &mut pair.proxied].into_iter().zip(&bytes)
            {
                let rest = bytes.get(from..).unwrap_or_default();
                connection.send(rest.get(..to - from).unwrap_or(rest), PATIENCE);
            }
            from = to.max(from);
            // So that pieces arrive as such more often; nothing depends on it.
            std::thread::yield_now();
        }
        match wait {
            Wait::Nothing => Ok(()),
            Wait::Replies => {
                self.await_direct(client, SILENCE);
                self.compare()
            }
            Wait::Blocked => {
                self.await_blocked(client, blocked);
                self.compare()?;
                self.rig.settle()
            }
        }
    }

    /// Waits until the direct server has answered everything, or is silent.
    fn await_direct(&mut self, client: usize, silence: Duration) {
        let Some(pair) = self.pair(client) else { return };
        let (mut last, before) = (Instant::now(), pair.direct.frames.len());
        while pair.is_owed(before) && !pair.direct.is_closed {
            pair.direct.wait(Duration::from_millis(20));
            if pair.direct.pump() {
                last = Instant::now();
            } else if last.elapsed() > silence {
                break;
            }
        }
        pair.is_cut();
        // The direct server says what is owed: it refuses `CLIENT REPLY SKIP` where the client has
        // not authenticated. Pointsman does not understand such a session from then on.
        pair.is_opaque |= pair.direct.replies > pair.asked.len();
        pair.asked.resize(pair.direct.replies, unexpected());
    }

    /// Waits until the direct server has blocked the client or has answered.
    fn await_blocked(&mut self, client: usize, before: i64) {
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && self.rig.blocked_directly() <= before {
            let Some(pair) = self.pair(client) else { return };
            pair.direct.pump();
            if pair.direct.replies >= pair.asked.len() {
                return;
            }
        }
    }

    fn leave(&mut self, client: usize, reset: bool) -> Result<(), String> {
        let Some(pair) = self.pairs.get_mut(client).and_then(Option::take) else { return Ok(()) };
        pair.direct.close(reset);
        pair.proxied.close(reset);
        let is_open = |pair: &&Option<Pair>| pair.as_ref().is_some_and(|it| !it.direct.is_closed);
        let open = self.pairs.iter().filter(is_open).count();
        self.rig.await_clients(i64::try_from(open).unwrap_or(0))?;
        self.rig.settle()
    }

    /// Waits until the proxied side has as much as the direct one, and compares.
    fn compare(&mut self) -> Result<(), String> {
        for (client, pair) in self.pairs.iter_mut().enumerate() {
            let Some(pair) = pair else { continue };
            pair.compare(self.left_tracking).map_err(|what| format!("client {client}: {what}"))?;
        }
        Ok(())
    }

    /// Every client that is left has to be answered, and nothing else may have arrived.
    fn end(&mut self) -> Result<(), String> {
        let wire = Wire::Words(vec![b"PING".to_vec()]);
        let ping = [Request { wire, replies: 1, treatment: Treatment::Exact }];
        for client in 0..self.pairs.len() {
            if self.pair(client).is_some_and(|pair| !pair.direct.is_closed) {
                self.send(client, &ping, &[], Wait::Replies)?;
            }
        }
        for (client, pair) in self.pairs.iter_mut().enumerate() {
            let Some(pair) = pair else { continue };
            pair.proxied.pump();
            if pair.is_cut {
                continue;
            }
            if let Some(extra) = pair.proxied.frames.get(pair.direct.frames.len()) {
                return Err(format!("client {client}: unexpected {}", readable(extra)));
            }
        }
        // What only its own client notices is no difference, if that sent something wrong; another
        // client could have been on the connection.
        match self.rig.new_desyncs() {
            0 => Ok(()),
            _ => {
                Err("a shared connection was closed, because its replies did not match".to_owned())
            }
        }
    }
}

impl Pair {
    /// Takes what the direct server sent. Whether it closed the connection with requests unread or
    /// replies owed, as servers do with clients that have not authenticated and send much: which of
    /// the last replies arrive is chance.
    fn is_cut(&mut self) -> bool {
        self.direct.pump();
        let is_owed = self.direct.replies < self.asked.len();
        self.is_cut |= self.direct.is_reset || (self.direct.is_closed && is_owed);
        self.is_cut
    }

    /// Whether the direct server owes replies. One that refuses `CLIENT REPLY SKIP` to a client
    /// that has not authenticated answers all requests. `before`: the frames before them.
    fn is_owed(&self, before: usize) -> bool {
        let new = self.direct.frames.get(before..).unwrap_or_default();
        let answers_all = new.iter().any(|frame| is_unauthenticated(frame));
        let owed = if answers_all { self.asked.len().max(self.most) } else { self.asked.len() };
        self.direct.replies < owed
    }

    /// Whether the direct server has refused many requests of a client that has not authenticated.
    fn errs_unauthenticated(&self) -> bool {
        let frames = self.direct.frames.iter();
        frames.filter(|frame| is_unauthenticated(frame)).count() >= MANY_ERRORS
    }

    /// The number of the connection on that side.
    fn id(&self, side: usize) -> String {
        self.ids.get(side).cloned().unwrap_or_default()
    }

    fn compare(&mut self, left_tracking: bool) -> Result<(), String> {
        if self.is_cut() {
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        self.proxied.pump();
        while self.proxied.frames.len() < self.direct.frames.len() {
            let is_late = self.proxied.is_closed || Instant::now() > deadline;
            if !self.proxied.pump() && is_late {
                break;
            }
            self.proxied.wait(Duration::from_millis(20));
        }
        while let Some(direct) = self.direct.frames.get(self.compared) {
            let unexpected = unexpected();
            let (treatment, request) = self.asked.get(self.answered).unwrap_or(&unexpected);
            let proxied = self.proxied.frames.get(self.compared).map(Vec::as_slice);
            let agrees = self.is_resp3 && !self.is_opaque;
            let expected = compared(&agreed(direct, *treatment, agrees), *treatment);
            let differs = proxied.is_none_or(|it| compared(it, *treatment) != expected);
            let invalidates = direct.windows(10).any(|it| it == b"invalidate");
            if differs && left_tracking && is_unasked(direct) && invalidates {
                self.direct.frames.remove(self.compared);
                continue;
            }
            if differs
                && proxied == Some(CLOSED)
                && is_unauthenticated(direct)
                && self.errs_unauthenticated()
            {
                self.is_cut = true;
                return Ok(());
            }
            if differs {
                let proxied = proxied.map_or_else(|| "nothing".to_owned(), readable);
                let direct = readable(direct);
                return Err(format!(
                    "{request}\n      directly: {direct}\n      proxied:  {proxied}"
                ));
            }
            match (request.to_ascii_uppercase().as_str(), direct.first()) {
                (text, Some(kind)) if text.starts_with("HELLO") => match kind {
                    b'%' => self.is_resp3 = true,
                    b'*' => self.is_resp3 = false,
                    _ => {}
                },
                ("RESET", Some(b'+')) => self.is_resp3 = false,
                ("CLIENT ID", Some(b':')) => {
                    self.ids = [direct, proxied.unwrap_or_default()].map(number);
                }
                _ => {}
            }
            self.answered += usize::from(!is_unasked(direct));
            self.compared += 1;
        }
        Ok(())
    }
}

/// The reply to a request that asked for none: it may be one to `HELLO`.
fn unexpected() -> (Treatment, String) {
    (Treatment::HelloId, "an earlier request".to_owned())
}

fn is_unauthenticated(frame: &[u8]) -> bool {
    frame.starts_with(b"-NOAUTH")
}

/// The digits of a number.
fn number(frame: &[u8]) -> String {
    String::from_utf8_lossy(frame.get(1..).unwrap_or_default()).trim().to_owned()
}
