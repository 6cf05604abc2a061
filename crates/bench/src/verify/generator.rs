//! Random conversations. Pure: the same seed always makes the same conversation.
//!
//! Each client carries out episodes: a pipeline, a transaction, a subscription, a change of user,
//! half a request, and so on. Steps of the clients' episodes alternate at random. Examples of every
//! command are those of the end-to-end tests.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;

use super::conversation::{Action, Conversation, Request, Step, Wait, Wire};
use super::exceptions::{NO_REQUEST, Treatment, treatment};
use super::words;

const EXAMPLES: &str = include_str!("../../../../tests/e2e/shared_commands/examples.txt");

/// What a conversation may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Profile {
    /// Pointsman shares connections.
    pub(super) is_shared: bool,
    /// There is a planned failover, so nothing may pin a session to its server.
    pub(super) has_failover: bool,
}

/// The users of a conversation, in the words of `ACL SETUSER` without their passwords.
const USERS: [(&str, &str); 3] = [
    ("alice", "~* &* +@all"),
    ("bob", "~* &* +@all -select -get"),
    ("carol", "~k* ~q* &ch* +@read +@write +@connection +@transaction +@pubsub -@dangerous"),
];

/// Requests about a few keys that all clients use. Capital letters are replaced: a key (S, L, H, Z,
/// U, A for any type), a value (V), a small number (N).
const DATA: &str = "\
    SET S V ; SET S V ; GET S ; GET S ; GET S ; GET A ; APPEND S V ; STRLEN S ; INCR kn ; \
    INCRBY kn N ; GETSET S V ; SETRANGE S N V ; GETRANGE S 0 N ; DEL A ; EXISTS A S ; TYPE A ; \
    RENAME S kr ; MGET S S A ; MSET S V kn N ; LPUSH L V ; RPUSH L V V ; LRANGE L 0 -1 ; LPOP L ; \
    LLEN A ; HSET H f V ; HGET H f ; HGETALL H ; HINCRBY H n N ; HDEL H f ; ZADD Z N m ; \
    ZRANGE Z 0 -1 WITHSCORES ; ZSCORE Z m ; ZINCRBY Z N m ; ZREM Z m ; SADD U V ; SMEMBERS U ; \
    SCARD U ; SREM U V ; SISMEMBER U V ; PFADD kp V ; PFCOUNT kp ; BITCOUNT S ; SETBIT kb N 1 ; \
    OBJECT ENCODING A ; EXPIRE A 1000 ; PERSIST A ; ECHO V ; PING ; PING V ; PUBLISH ch0 V ; \
    PUBLISH ch1 V ; SPUBLISH sh0 V ; EVAL return{KEYS[1],ARGV[1],N} 1 S V ; \
    EVAL return(redis.call('incr',KEYS[1])) 1 kn ; EVAL_RO return(redis.call('get',KEYS[1])) 1 S ; \
    NOSUCH V ; GET ; SET S V NX ; SET S V GET ; GETDEL S ; COPY S kc REPLACE ; DBSIZE ; LASTSAVE ; \
    SWAPDB 2 3 ; FLUSHDB ; MOVE S 1 ; DUMP S";

/// Requests whose replies depend on nothing that another client does. C is the client.
const OWN: &str = "\
    set ownC V ; set ownC C-V ; get ownC ; get ownC ; get ownC ; incr nC ; append ownC C ; \
    echo C-V ; echo C-N ; echo C-N ; echo C-N ; rpush lC V V ; lrange lC 0 -1 ; lpop lC ; \
    hset hC f V ; hgetall hC ; strlen ownC ; nosuch-C V ; get ; ping V ; setrange ownC 30000 C ; \
    exists ownC ; del ownC ; eval return{KEYS[1],N} 1 ownC ; NESTED";

const READS: &str = "get ownC ; echo C-N ; hgetall hC ; lrange lC 0 -1 ; nosuch-C ; NESTED";

/// Requests that change the state of a session.
const STATE: &str = "\
    HELLO ; HELLO 2 ; HELLO 3 ; HELLO 3 ; HELLO 4 ; HELLO 3 NOSUCH ; SELECT 0 ; SELECT N ; \
    SELECT 99 ; SELECT x ; CLIENT SETNAME name-N ; CLIENT SETNAME name-N ; CLIENT NO-EVICT ON ; \
    CLIENT NO-EVICT OFF ; CLIENT NO-TOUCH ON ; CLIENT SETINFO LIB-NAME lib ; READONLY ; \
    READWRITE ; AUTH nobody wrong ; AUTH wrong ; HELLO 3 SETNAME name-N ; RESET";

/// Requests that show the state of a session.
const CHECKS: &str = "\
    CLIENT GETNAME ; ACL WHOAMI ; CLIENT INFO ; CLIENT INFO ; CLIENT TRACKINGINFO ; \
    CLIENT GETREDIR ; CLIENT ID ; PING";

const TRACKING: &str = "\
    CLIENT TRACKING ON ; CLIENT TRACKING ON NOLOOP ; CLIENT TRACKING ON OPTIN ; \
    CLIENT TRACKING ON OPTOUT ; CLIENT TRACKING OFF ; CLIENT CACHING YES ; CLIENT CACHING NO ; \
    CLIENT TRACKING ON BCAST PREFIX bc: ; CLIENT TRACKING ON BCAST PREFIX bc: NOLOOP ; \
    SET bc:N V ; SET bc:N V ; DEL bc:N";

/// What clients that want to be notified of maintenance send. Pointsman agrees in RESP3.
const MAINTENANCE: &str = "\
    CLIENT MAINT_NOTIFICATIONS ON ; CLIENT MAINT_NOTIFICATIONS OFF ; \
    CLIENT MAINT_NOTIFICATIONS ON MOVING-ENDPOINT-TYPE none ; \
    client maint_notifications on moving-endpoint-type external-ip";

/// Requests that block for a moment, and until another client pushes.
const SHORT: &str = "BLPOP q 0.02 ; BRPOP q q2 0.01 ; BLMOVE q q2 LEFT RIGHT 0.02 ; \
    XREAD BLOCK 10 STREAMS kx $ ; BZPOPMIN kz9 0.01";
const LONG: &str = "BLPOP q 3 ; BRPOP q2 q 3 ; BLMOVE q q2 LEFT RIGHT 3 ; BLMPOP 3 1 q LEFT";

/// Inline requests and other framing, with the number of their replies. No line of spaces: Valkey 8
/// reads what follows it as lines.
const FRAMING: &[(&[u8], usize)] = &[
    (b"PING\r\n", 1),
    (b"GET k0\n", 1),
    (b"SET k0 \"quo\\x41 ted\\r\\n\"\r\n", 1),
    (b"ECHO 'it\\'s'\r\n", 1),
    (b"\r\n", 0),
    (b"*0\r\n", 0),
    (b"*-1\r\n", 0),
    (b"   ECHO    spaces   \r\n", 1),
    (b"GET too many words\r\n", 1),
];

/// Bytes that end a connection with an error.
const ERRORS: &[&[u8]] = &[
    b"*01\r\n$4\r\nPING\r\n",
    b"*2\r\n$004\r\nECHO\r\n$0\r\n\r\n",
    b"*1\r\n$x\r\n",
    b"*1\r\n:3\r\n",
    b"*x\r\n",
    b"*2147483648\r\n",
    b"*1\r\n$536870913\r\n",
    b"*2\r\n$3\r\nGET\r\n$-5\r\n",
    b"SET k0 \"unbalanced\r\n",
    b"SET k0 \"quoted\"x\r\n",
];

/// A random conversation.
pub(super) fn conversation(seed: u64, profile: Profile) -> Conversation {
    let mut rng = Rng::with_seed(seed);
    let clients = rng.usize(3..=6);
    let steps = rng.usize(20..=60);
    let mut generator = Generator {
        passwords: BTreeMap::new(),
        queues: vec![VecDeque::new(); clients],
        steps: Vec::new(),
        examples: examples(profile),
        rng,
        profile,
    };
    generator.introduce();
    let mut failover = profile.has_failover.then_some(steps / 2);
    while generator.steps.len() < steps {
        if failover.is_some_and(|at| generator.steps.len() >= at) {
            failover = None;
            generator.drain();
            generator.steps.push(Step { client: 0, action: Action::Failover });
        }
        let client = generator.rng.usize(..clients);
        generator.advance(client);
    }
    generator.drain();
    Conversation { steps: generator.steps }
}

struct Generator {
    rng: Rng,
    profile: Profile,
    examples: Vec<Vec<Request>>,
    /// The present password of each user.
    passwords: BTreeMap<&'static str, String>,
    /// What remains of the episode of each client.
    queues: Vec<VecDeque<Action>>,
    steps: Vec<Step>,
}

impl Generator {
    /// The users, and how the clients authenticate at first.
    fn introduce(&mut self) {
        for (user, rules) in USERS {
            self.set_password(user, &format!(" on {rules}"));
        }
        if self.rng.u8(..4) == 0 {
            self.set_password("default", "");
        }
        for client in 0..self.queues.len() {
            if self.rng.u8(..3) > 0 || self.passwords.contains_key("default") {
                let login = self.login();
                self.queue(client, vec![login]);
            }
        }
    }

    fn set_password(&mut self, user: &'static str, rules: &str) {
        let password = format!("{user}-{}", self.rng.u16(..));
        self.operator(&format!("ACL SETUSER {user} resetpass >{password}{rules}"));
        self.passwords.insert(user, password);
    }

    fn operator(&mut self, text: &str) {
        self.steps.push(Step { client: 0, action: Action::Operator(words(text)) });
    }

    fn drain(&mut self) {
        for client in 0..self.queues.len() {
            while let Some(action) = self.queues.get_mut(client).and_then(VecDeque::pop_front) {
                self.steps.push(Step { client, action });
            }
        }
    }

    fn queue(&mut self, client: usize, actions: Vec<Action>) {
        if let Some(queue) = self.queues.get_mut(client) {
            queue.extend(actions);
        }
    }

    /// The next step of a client.
    fn advance(&mut self, client: usize) {
        if self.queues.get(client).is_some_and(VecDeque::is_empty) {
            let episode = self.episode(client);
            self.queue(client, episode);
        }
        if let Some(action) = self.queues.get_mut(client).and_then(VecDeque::pop_front) {
            self.steps.push(Step { client, action });
        }
    }

    fn episode(&mut self, client: usize) -> Vec<Action> {
        let kinds = if self.profile.has_failover { 70 } else { 103 };
        match self.rng.u8(..kinds) {
            0..15 => vec![self.pipeline()],
            15..18 => vec![self.maintenance()],
            18..26 => self.together(client),
            26..38 => self.example(),
            38..45 => vec![self.one_of(STATE)],
            45..53 => vec![self.check()],
            53..57 => vec![self.login()],
            57..60 => self.half(),
            60..63 => vec![self.framing()],
            63..66 => vec![Action::Pause(60)],
            66..68 => vec![Action::Leave { reset: self.rng.bool() }],
            68..70 => vec![self.whole_transaction()],
            70..76 => self.transaction(),
            76..80 => self.subscription(),
            80..84 => self.blocking(client),
            84..88 => vec![self.one_of(TRACKING)],
            88..91 => self.reply_mode(client),
            91..93 => vec![self.protocol_error()],
            93..95 => self.abandoned(client),
            95..97 => self.rights(),
            97..99 => vec![self.nested()],
            99 if self.rng.bool() => vec![self.send_text("QUIT", 2)],
            100 | 101 => self.redirection(client),
            102 => self.own_end(client),
            _ => vec![Action::Pause(if self.rng.u8(..4) == 0 { 1100 } else { 60 })],
        }
    }

    fn request(&mut self, template: &str) -> Request {
        // An unknown command pins its session to its server.
        let is_unknown = template.to_ascii_uppercase().starts_with("NOSUCH");
        let template = if is_unknown && self.profile.has_failover { "GET" } else { template };
        let words: Vec<Vec<u8>> = template.split(' ').map(|word| self.word(word)).collect();
        request(words, self.profile.is_shared)
    }

    fn word(&mut self, word: &str) -> Vec<u8> {
        let kind = match word {
            "A" => self.pick("k ; kl ; kh ; kz ; ku"),
            "S" => "k",
            "L" => "kl",
            "H" => "kh",
            "Z" => "kz",
            "U" => "ku",
            "V" => return self.value(),
            _ => return with_number(word, self.rng.u8(..4)),
        };
        format!("{kind}{}", self.rng.u8(..3)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.u8(..24) {
            0 => Vec::new(),
            1 => b"a\r\nb".to_vec(),
            2 => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            3 => vec![0, 255, b'\n', b'$'],
            4 => vec![b'x'; self.rng.usize(100..3000)],
            5 if self.rng.u8(..4) == 0 => vec![b'y'; self.rng.usize(15_000..100_000)],
            6 => b"7".to_vec(),
            _ => format!("v{}", self.rng.u16(..1000)).into_bytes(),
        }
    }

    fn pipeline(&mut self) -> Action {
        let length = match self.rng.u8(..20) {
            0..12 => 1,
            12..19 => self.rng.usize(2..10),
            _ => self.rng.usize(50..300),
        };
        let requests = (0..length).map(|_| {
            let template = self.pick(DATA);
            self.request(template)
        });
        let requests = requests.collect();
        self.send(requests)
    }

    /// Requests in one write, perhaps split.
    fn send(&mut self, requests: Vec<Request>) -> Action {
        // Redis 8.6 does not answer a protocol error whose bytes arrive one after the other.
        let is_whole = requests.iter().any(|it| it.treatment == NO_REQUEST);
        let length: usize = requests.iter().map(|it| it.bytes().len()).sum();
        let mut cuts: Vec<usize> = match self.rng.u8(..10) {
            _ if is_whole => Vec::new(),
            0 if length < 80 => (1..length).collect(),
            0..3 if length > 1 => {
                (0..self.rng.usize(1..5)).map(|_| self.rng.usize(1..length)).collect()
            }
            _ => Vec::new(),
        };
        cuts.sort_unstable();
        cuts.dedup();
        Action::Send { requests, cuts, wait: Wait::Replies }
    }

    fn send_text(&mut self, text: &str, replies: usize) -> Action {
        let request = Request { replies, ..self.request(text) };
        self.send(vec![request])
    }

    /// One of these templates, which ` ; ` separates.
    fn pick<'a>(&mut self, templates: &'a str) -> &'a str {
        let all: Vec<&str> = templates.split(" ; ").collect();
        self.rng.choice(all).unwrap_or("PING")
    }

    fn one_of(&mut self, templates: &str) -> Action {
        let template = self.pick(templates);
        self.send_text(template, 1)
    }

    fn example(&mut self) -> Vec<Action> {
        let example = self.rng.choice(self.examples.iter()).cloned().unwrap_or_default();
        if self.rng.bool() {
            return vec![self.send(example)];
        }
        example.into_iter().map(|request| self.send(vec![request])).collect()
    }

    fn check(&mut self) -> Action {
        if self.profile.has_failover {
            return self.one_of("CLIENT GETNAME ; ACL WHOAMI ; CLIENT INFO ; PING");
        }
        self.one_of(CHECKS)
    }

    fn login(&mut self) -> Action {
        let users: Vec<_> = self.passwords.iter().map(|(user, it)| (*user, it.clone())).collect();
        let (user, password) = self.rng.choice(users.iter()).cloned().unwrap_or_default();
        match self.rng.u8(..5) {
            0 if user == "default" => self.send_text(&format!("AUTH {password}"), 1),
            0 | 1 => self.send_text(&format!("AUTH {user} {password}"), 1),
            2 => self.send_text(&format!("HELLO 3 AUTH {user} {password}"), 1),
            3 => self.send_text(&format!("HELLO 3 AUTH {user} {password} SETNAME login"), 1),
            _ => self.send_text(&format!("HELLO 2 AUTH {user} {password}"), 1),
        }
    }

    /// A request in two parts, with steps of others between; or the first part, and the end.
    fn half(&mut self) -> Vec<Action> {
        // The second half may be the first request of a new connection. Whether a server takes a
        // line of little more than 64 KiB depends on what it has read when it looks. It refuses
        // more than 16 KiB of a client that has not authenticated once that is announced, and
        // Pointsman sends whole requests on shared connections.
        let bytes = Some(self.request("SET S V").bytes()).filter(|it| it.len() < 16_000);
        let bytes = bytes.unwrap_or_else(|| self.request("GET S").bytes());
        let (first, rest) = bytes.split_at(self.rng.usize(1..bytes.len()));
        let raw = |bytes: &[u8], replies| Action::Send {
            requests: vec![raw(bytes, replies)],
            cuts: Vec::new(),
            wait: Wait::Replies,
        };
        let end = match self.rng.u8(..3) {
            0 => Action::Leave { reset: self.rng.bool() },
            _ => raw(rest, 1),
        };
        vec![raw(first, 0), end]
    }

    fn framing(&mut self) -> Action {
        let (bytes, replies) = self.rng.choice(FRAMING.iter()).copied().unwrap_or((b"", 0));
        let mut requests = vec![raw(bytes, replies)];
        if self.rng.bool() {
            requests.push(self.request("GET S"));
        }
        self.send(requests)
    }

    fn protocol_error(&mut self) -> Action {
        let bytes = self.rng.choice(ERRORS.iter()).copied().unwrap_or_default();
        let mut requests = vec![Request { treatment: NO_REQUEST, ..raw(bytes, 2) }];
        if self.rng.bool() {
            requests.insert(0, self.request("GET S"));
        }
        self.send(requests)
    }

    fn transaction_parts(&mut self) -> Vec<Request> {
        let mut parts = vec![self.request("MULTI")];
        for _ in 0..self.rng.usize(0..4) {
            parts.push(match self.rng.u8(..12) {
                0 => self.request("NOSUCH"),
                1 => self.request("LPUSH S V"),
                2 => self.request("BLPOP kl0 0.01"),
                _ => self.request("SET S V"),
            });
        }
        let last = if self.rng.u8(..5) == 0 { "DISCARD" } else { "EXEC" };
        parts.push(self.request(last));
        parts
    }

    fn whole_transaction(&mut self) -> Action {
        let parts = self.transaction_parts();
        self.send(parts)
    }

    fn transaction(&mut self) -> Vec<Action> {
        let mut parts = self.transaction_parts();
        if self.rng.bool() {
            parts.insert(0, self.request("WATCH S S"));
        }
        if self.rng.u8(..6) == 0 {
            parts.pop();
            parts.push(self.request("RESET"));
        }
        parts.into_iter().map(|request| self.send(vec![request])).collect()
    }

    fn subscription(&mut self) -> Vec<Action> {
        let (begin, end) = match self.rng.u8(..4) {
            0 => ("PSUBSCRIBE ch*", "PUNSUBSCRIBE ch*"),
            1 => ("SSUBSCRIBE sh0", "SUNSUBSCRIBE sh0"),
            2 => ("SUBSCRIBE ch0 ch1", "UNSUBSCRIBE ch0 ch1"),
            _ => ("SUBSCRIBE ch0", "UNSUBSCRIBE ch0"),
        };
        let count = |text: &str| text.split(' ').count() - 1;
        let mut actions = vec![self.send_text(begin, count(begin))];
        for _ in 0..self.rng.usize(0..4) {
            actions.push(self.one_of("PING ; PING V ; GET S ; PUBLISH ch0 V ; SPUBLISH sh0 V"));
        }
        if self.rng.bool() {
            actions.push(self.send_text(end, count(end)));
        }
        actions
    }

    /// A request that blocks until another client pushes, or until its client leaves.
    fn blocking(&mut self, client: usize) -> Vec<Action> {
        let idle: Vec<usize> = self
            .queues
            .iter()
            .enumerate()
            .filter(|(other, queue)| *other != client && queue.is_empty())
            .map(|(other, _)| other)
            .collect();
        let Some(other) = self.rng.choice(idle.iter()).copied().filter(|_| self.rng.bool()) else {
            return vec![self.one_of(SHORT)];
        };
        let requests = vec![{
            let long = self.pick(LONG);
            self.request(long)
        }];
        let begin = Action::Send { requests, cuts: Vec::new(), wait: Wait::Blocked };
        let push = self.send_text("RPUSH q V", 1);
        self.steps.push(Step { client, action: begin });
        if self.rng.u8(..4) == 0 {
            let action = Action::Leave { reset: self.rng.bool() };
            self.steps.push(Step { client, action });
            self.steps.push(Step { client: other, action: push });
            return vec![self.send_text("LLEN q", 1)];
        }
        self.steps.push(Step { client: other, action: push });
        vec![Action::Await, self.send_text("LPOP q 9", 1)]
    }

    /// The handshake of a client that wants to be notified of maintenance, alone or among the first
    /// requests of a connection.
    fn maintenance(&mut self) -> Action {
        if self.rng.bool() {
            return self.one_of(MAINTENANCE);
        }
        let agree = self.pick(MAINTENANCE);
        let mut texts = vec!["HELLO 3", "CLIENT SETINFO LIB-NAME lib", agree, "GET S"];
        if self.rng.u8(..3) == 0 {
            texts.insert(self.rng.usize(..4), "GET S");
        }
        if self.rng.u8(..3) == 0 {
            texts.remove(0);
        }
        let requests = texts.into_iter().map(|text| self.request(text)).collect();
        self.send(requests)
    }

    /// Another client receives the invalidations of this one.
    fn redirection(&mut self, client: usize) -> Vec<Action> {
        let other = self.rng.usize(..self.queues.len());
        if other == client || self.queues.get(other).is_none_or(|queue| !queue.is_empty()) {
            return vec![self.one_of(TRACKING)];
        }
        let mut ask = vec!["CLIENT ID"];
        match self.rng.u8(..3) {
            0 => ask.push("SUBSCRIBE __redis__:invalidate"),
            1 => ask.insert(0, "HELLO 3"),
            _ => {}
        }
        for text in ask {
            let action = self.send_text(text, 1);
            self.steps.push(Step { client: other, action });
        }
        let mut texts = vec![format!("CLIENT TRACKING ON REDIRECT @id-of-{other}")];
        texts.extend(["GET S", "CLIENT GETREDIR", "CLIENT TRACKING OFF"].map(str::to_owned));
        let mut requests: Vec<Request> = texts.iter().map(|text| self.request(text)).collect();
        // The reply is a number of a connection.
        requests.iter_mut().skip(2).take(1).for_each(|it| it.treatment = Treatment::Kind);
        // Before both do anything else: when an invalidation arrives is not known beside other
        // requests of the client that receives it.
        requests.insert(3, self.request("SET S V"));
        for request in requests {
            let action = self.send(vec![request]);
            self.steps.push(Step { client, action });
        }
        Vec::new()
    }

    /// A client ends its own connection, or does not.
    fn own_end(&mut self, client: usize) -> Vec<Action> {
        let (end, replies) = match self.rng.u8(..3) {
            0 => (" SKIPME no", 2),
            1 => (" SKIPME yes", 1),
            _ => ("", 1),
        };
        let kill = self.request(&format!("CLIENT KILL ID @id-of-{client}{end}"));
        let kill = Request { treatment: Treatment::Exact, replies, ..kill };
        vec![self.send_text("CLIENT ID", 1), self.send(vec![kill])]
    }

    /// Requests without replies.
    fn reply_mode(&mut self, client: usize) -> Vec<Action> {
        let silent = |text: String, this: &mut Self| Request { replies: 0, ..this.request(&text) };
        let own = format!("SET own{client} V");
        if self.rng.bool() {
            let requests = vec![
                silent("CLIENT REPLY SKIP".to_owned(), self),
                silent(own, self),
                self.request(&format!("GET own{client}")),
            ];
            return vec![self.send(requests)];
        }
        let off = silent("CLIENT REPLY OFF".to_owned(), self);
        let on = vec![self.request("CLIENT REPLY ON"), self.request(&format!("GET own{client}"))];
        if self.rng.bool() {
            let mut requests = vec![off, silent(own.clone(), self), silent(own, self)];
            requests.extend(on);
            return vec![self.send(requests)];
        }
        // Nothing shows when this is executed, so it changes nothing that others see.
        let requests = vec![off, silent(format!("GET own{client}"), self)];
        vec![self.send(requests), self.send(on)]
    }

    /// Several clients send at once, and one of them may leave meanwhile. Each uses keys of its
    /// own, because the order is not known, and every reply names its client.
    fn together(&mut self, client: usize) -> Vec<Action> {
        let is_free = |(other, queue): (usize, &VecDeque<Action>)| {
            (other == client || queue.is_empty()).then_some(other)
        };
        let mut clients: Vec<usize> = self.queues.iter().enumerate().filter_map(is_free).collect();
        self.rng.shuffle(&mut clients);
        let mut ends = Vec::new();
        for client in clients {
            // Which of its last requests are executed is not known, so they only read.
            let leaves = self.rng.u8(..12) == 0;
            let templates = if leaves { READS } else { OWN };
            let count = self.rng.usize(1..20);
            let requests = (0..count).map(|_| self.own_request(client, templates)).collect();
            let Action::Send { requests, cuts, .. } = self.send(requests) else { continue };
            let action = Action::Send { requests, cuts, wait: Wait::Nothing };
            self.steps.push(Step { client, action });
            let end = if leaves { Action::Leave { reset: self.rng.bool() } } else { Action::Await };
            ends.push(Step { client, action: end });
        }
        self.rng.shuffle(&mut ends);
        self.steps.append(&mut ends);
        Vec::new()
    }

    fn own_request(&mut self, client: usize, templates: &str) -> Request {
        let template = self.pick(templates).replace('C', &client.to_string());
        if template != "NESTED" {
            return self.request(&template);
        }
        let depth = *self.rng.choice([2, 30, 120, 200].iter()).unwrap_or(&2);
        let script = format!("local t='{client}' for i=1,{depth} do t={{t,i}} end return t");
        let words = [b"EVAL".to_vec(), script.into_bytes(), b"0".to_vec()].to_vec();
        request(words, self.profile.is_shared)
    }

    /// A client that leaves while large replies are on their way. Nothing comes between, because
    /// nothing shows when they are executed.
    fn abandoned(&mut self, client: usize) -> Vec<Action> {
        let fill = self.send_text("SETRANGE kbig 400000 V", 1);
        let requests = (0..self.rng.usize(1..12)).map(|_| self.request("GET kbig")).collect();
        let ask = Action::Send { requests, cuts: Vec::new(), wait: Wait::Nothing };
        let leave = Action::Leave { reset: self.rng.bool() };
        self.steps.extend([fill, ask, leave].map(|action| Step { client, action }));
        Vec::new()
    }

    /// A change of users, by an operator or by the client.
    fn rights(&mut self) -> Vec<Action> {
        let user = self.rng.choice(USERS.iter()).map_or("alice", |(user, _)| *user);
        // A sharing client whose secret does not work any more is closed when it needs another
        // connection (docs/shared-upstreams.md, "Credentials").
        let shared = "-get ; +get ; -set ; +set ; on";
        let rule =
            self.pick(if self.profile.is_shared { shared } else { "-get ; +get ; off ; on" });
        match self.rng.u8(..3) {
            0 if self.profile.is_shared => self.rotate_for_all(user),
            0 => self.set_password(user, ""),
            1 => self.operator(&format!("ACL SETUSER {user} {rule}")),
            _ => return vec![self.send_text(&format!("ACL SETUSER {user} {rule}"), 1)],
        }
        Vec::new()
    }

    /// A new password, with which all clients authenticate at once. Those that have subscribed
    /// could not. Where clients have to authenticate, a database that was selected with the former
    /// password could not be selected again for a user without `+select`.
    fn rotate_for_all(&mut self, user: &'static str) {
        let is_subscribing = |step: &Step| step.to_string().contains("SUBSCRIBE");
        let is_open = !self.passwords.contains_key("default");
        let are_free = is_open && self.queues.iter().all(VecDeque::is_empty);
        if !are_free || self.steps.iter().any(is_subscribing) {
            return;
        }
        self.set_password(user, "");
        for client in 0..self.queues.len() {
            let action = self.login();
            self.steps.push(Step { client, action });
        }
    }

    /// A reply with many levels, or with types of the third version of the protocol.
    fn nested(&mut self) -> Action {
        let depth = *self.rng.choice([3, 30, 100, 120, 200].iter()).unwrap_or(&3);
        let script = match self.rng.u8(..3) {
            0 => "redis.setresp(3); return {map={a={double=1.5}}}".to_owned(),
            1 => "redis.setresp(3); return {set={x=true}}".to_owned(),
            _ => format!("local t='deep' for i=1,{depth} do t={{t,i}} end return t"),
        };
        let words = [b"EVAL".to_vec(), script.into_bytes(), b"0".to_vec()].to_vec();
        let request = request(words, self.profile.is_shared);
        self.send(vec![request])
    }
}

fn with_number(word: &str, number: u8) -> Vec<u8> {
    let is_placeholder =
        word == "N" || word.ends_with("-N") || word.ends_with(":N") || word.contains(",N");
    if !is_placeholder {
        return word.as_bytes().to_vec();
    }
    word.replacen('N', &number.to_string(), 1).into_bytes()
}

fn request(words: Vec<Vec<u8>>, is_shared: bool) -> Request {
    let treatment = treatment(&words, is_shared);
    Request { wire: Wire::Words(words), replies: 1, treatment }
}

fn raw(bytes: &[u8], replies: usize) -> Request {
    Request { wire: Wire::Raw(bytes.to_vec()), replies, treatment: Treatment::Exact }
}

/// The examples of commands that may be sent.
fn examples(profile: Profile) -> Vec<Vec<Request>> {
    let lines = EXAMPLES.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| example(line, profile)).filter(|it| !it.is_empty()).collect()
}

/// An example: `COMMAND [reason of a promotion]: REQUEST ; ~REQUEST`. `~` marks a reply whose
/// content depends on the server or the time.
fn example(line: &str, profile: Profile) -> Option<Vec<Request>> {
    let (head, requests) = line.split_once(": ")?;
    let pins = head.contains('[') || head.contains("scan") || head.contains("evalsha");
    if head.contains('!') || (profile.has_failover && (pins || line.contains("SCRIPT LOAD"))) {
        return None;
    }
    let one = |text: &str| {
        let text = text.trim();
        let mut found = request(words(text.trim_start_matches('~')), profile.is_shared);
        if text.starts_with('~') && found.treatment == Treatment::Exact {
            found.treatment = Treatment::Kind;
        }
        found
    };
    let requests = requests.split(';').map(one);
    Some(requests.filter(|it| it.treatment != Treatment::LeftOut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: Profile = Profile { is_shared: true, has_failover: false };

    #[test]
    fn makes_the_same_conversation_of_a_seed() {
        for seed in 0..50 {
            let one = conversation(seed, PROFILE);
            assert_eq!(one, conversation(seed, PROFILE));
            assert!(one.steps.len() >= 20 && one != conversation(seed + 50, PROFILE));
        }
    }

    /// Every kind of step, every example and every template occurs.
    #[test]
    fn covers_every_kind_of_step() {
        let text: String = (0..1000).map(|seed| conversation(seed, PROFILE).to_string()).collect();
        for word in [
            "awaits",
            "RST",
            "FIN",
            "operator: ACL SETUSER",
            "pause of 1100",
            "blocks",
            "split after",
            "unbalanced",
            "REPLY OFF",
            "TRACKING ON BCAST",
            "TRACKING ON REDIRECT @id-of-",
            "CLIENT KILL ID @id-of-",
            "maint_notifications",
            "HELLO 3 AUTH",
            "PSUBSCRIBE",
            "EXEC",
            "DISCARD",
            "QUIT",
            "RESET",
            "name-",
            "zunionstore",
            "GEOADD",
            "XCLAIM",
        ] {
            assert!(text.to_uppercase().contains(&word.to_uppercase()), "no {word}");
        }
        for word in ["SHUTDOWN", "MONITOR", "REPLICAOF", "WAIT 0 0", "planned failover", "name-N"] {
            let found = text.lines().find(|line| line.contains(word) && !line.contains("XINFO"));
            assert!(found.is_none(), "{word}: {found:?}");
        }
    }

    #[test]
    fn pins_nothing_before_a_failover() {
        let profile = Profile { is_shared: false, has_failover: true };
        for seed in 0..300 {
            let text = conversation(seed, profile).to_string();
            assert_eq!(text.matches("planned failover").count(), 1);
            for word in [
                "SUBSCRIBE",
                "TRACKING",
                "BLPOP q",
                "CLIENT ID",
                "SCAN",
                "WATCH",
                "REPLY",
                "NOSUCH V",
                "nosuch-",
            ] {
                assert!(!text.contains(word), "{word} in\n{text}");
            }
        }
    }
}
