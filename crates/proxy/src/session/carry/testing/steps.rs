//! The steps of a game, and sequences of them.

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};

use crate::session::carry::testing::ServerFault;

/// One step.
#[derive(Debug, Clone)]
pub(crate) enum GameStep {
    /// Sends a command.
    Send(Vec<String>),
    /// Sends an `ECHO` of the next number.
    Echo,
    /// Reads the replies to everything sent so far.
    ReadReplies,
    /// Publishes a message at the master, to which the client has just been connected.
    Publish(String),
    /// Publishes a message at the master or at the other server, whatever else is under way.
    PublishAnywhere(String, bool),
    /// A reply stops half-way to the client; the next step that needs it releases it.
    StopHalfway,
    /// The gate closes; whether to wait for the notification that is due then.
    Hold(bool),
    /// The gate opens without a master change.
    Release,
    Commit,
    /// The master closes every connection, and stays alive.
    Kick,
    /// The master crashes; the next commit is to the other server.
    Crash(bool),
    /// The master or the other server does not serve the next new connections.
    RefuseConnections(ServerFault, usize, bool),
}

const FAULTS: [ServerFault; 3] = [ServerFault::Full, ServerFault::Busy, ServerFault::Loading];

pub(crate) fn send(words: &str) -> GameStep {
    GameStep::Send(words.split(' ').map(str::to_owned).collect())
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<GameStep>> {
    let channel = || (0..4).prop_map(|it| format!("c{it}"));
    let step = prop_oneof![
        9 => Just(GameStep::Echo),
        9 => Just(GameStep::ReadReplies),
        4 => Just(GameStep::Commit),
        4 => any::<bool>().prop_map(GameStep::Hold),
        2 => Just(GameStep::Release),
        2 => Just(GameStep::Kick),
        1 => any::<bool>().prop_map(GameStep::Crash),
        3 => Just(GameStep::StopHalfway),
        4 => (0..3_usize, 1..4_usize, any::<bool>())
            .prop_map(|(it, count, here)| GameStep::RefuseConnections(FAULTS[it], count, here)),
        4 => channel().prop_map(GameStep::Publish),
        3 => (channel(), any::<bool>())
            .prop_map(|(channel, here)| GameStep::PublishAnywhere(channel, here)),
        24 => command().prop_map(|words| send(&words)),
    ];
    prop::collection::vec(step, 1..60)
}

fn command() -> impl Strategy<Value = String> {
    let text = |words: &str| Just(words.to_owned());
    let either = |one: &'static str, other: &'static str| {
        any::<bool>().prop_map(move |it| if it { one } else { other }.to_owned())
    };
    let handshake = (0..4_usize).prop_map(|it| {
        let agreement =
            ["OFF", "ON moving-endpoint-type none", "ON moving-endpoint-type internal-ip", "ON"]
                [it];
        format!("CLIENT MAINT_NOTIFICATIONS {agreement}")
    });
    let names = |command: &'static str, many: std::ops::Range<usize>| {
        prop::collection::vec((0..4).prop_map(|it| format!(" c{it}")), many)
            .prop_map(|it| command.to_owned() + &it.concat())
    };
    prop_oneof![
        3 => (0..18_u8).prop_map(|it| format!("SELECT {it}")),
        2 => either("AUTH ann pw", "AUTH bob pw"),
        1 => text("AUTH eve wrong"),
        2 => (0..99_u8).prop_map(|it| format!("CLIENT SETNAME n{it}")),
        1 => (0..99_u8).prop_map(|it| format!("CLIENT SETINFO LIB-NAME l{it}")),
        1 => either("CLIENT NO-TOUCH ON", "CLIENT NO-TOUCH OFF"),
        1 => either("READONLY", "READWRITE"),
        4 => text("HELLO 3"),
        1 => text("HELLO 2"),
        5 => handshake,
        1 => text("RESET"),
        3 => either("MULTI", "EXEC"),
        1 => either("EXEC", "DISCARD"),
        1 => either("WATCH k", "UNWATCH"),
        2 => either("SCAN 0", "SCAN next"),
        2 => text("SCAN next"),
        3 => either("CLIENT ID", "SCRIPT LOAD x"),
        1 => either("EVAL x 0", "EVALSHA x 0"),
        1 => text("MODULE.X"),
        3 => names("SUBSCRIBE", 1..4),
        1 => names("PSUBSCRIBE", 1..4),
        1 => names("SSUBSCRIBE", 1..4),
        2 => names("UNSUBSCRIBE", 0..3),
        1 => names("PUNSUBSCRIBE", 0..2),
        1 => names("SUNSUBSCRIBE", 0..2),
    ]
}
