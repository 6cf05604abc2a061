//! The replayable state of a connection: what the server keeps for it and can be set again on
//! another connection.
//!
//! The fields are what `RESET` clears (`redis:src/networking.c`, `clearClientConnectionState`),
//! without the state that pins a session, and the name and version of the client library, which
//! survive a `RESET`. Only accepted requests change it. If the effect of an accepted request is not
//! known, the part of the state that it may change is in doubt; the state cannot be replayed until
//! a later request sets that part.
//!
//! It contains passwords. All texts share one allocation, which is overwritten with zeros when it
//! is dropped.

use std::collections::BTreeSet;

use zeroize::Zeroizing;

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::budget::Share;

/// The texts of the state, in the order in which they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    User,
    Password,
    Name,
    LibName,
    LibVersion,
    /// Of the credentials before the present ones, under which settings were made.
    FormerUser,
    FormerPassword,
}

const TEXTS: usize = 7;

/// Parts of the state, one bit each.
pub(crate) mod part {
    pub(crate) const USER: u8 = 1;
    pub(crate) const DB: u8 = 1 << 1;
    pub(crate) const NAME: u8 = 1 << 2;
    pub(crate) const LIB: u8 = 1 << 3;
    pub(crate) const NO_EVICT: u8 = 1 << 4;
    pub(crate) const NO_TOUCH: u8 = 1 << 5;
    pub(crate) const READ_ONLY: u8 = 1 << 6;
    pub(crate) const SUBSCRIPTIONS: u8 = 1 << 7;
}

/// The parts that a request of that class may change.
pub(crate) fn parts(class: Class) -> u8 {
    match class {
        Class::Hello => part::USER | part::NAME,
        Class::Auth => part::USER,
        Class::Select => part::DB,
        Class::SetName => part::NAME,
        Class::SetInfo => part::LIB,
        Class::NoEvict => part::NO_EVICT,
        Class::NoTouch => part::NO_TOUCH,
        Class::ReadOnly | Class::ReadWrite => part::READ_ONLY,
        class if class.group() == ClassGroup::Subscribing => part::SUBSCRIPTIONS,
        _ => 0,
    }
}

/// How the connection was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AuthMethod {
    /// Not authenticated: the default user.
    #[default]
    None,
    /// With a password alone.
    Password,
    /// With a user name and a password.
    User,
}

/// The replayable state. The default is that of a new connection.
///
/// What the present user may not set again, the one before it could: while there are settings, the
/// credentials of that one are kept.
#[derive(Default)]
pub(crate) struct ReplayState {
    text: Zeroizing<Vec<u8>>,
    /// The lengths of the texts.
    lens: [u16; TEXTS],
    pub(crate) db: u32,
    pub(crate) auth: AuthMethod,
    /// How the connection was authenticated when settings were made, if that was another user.
    pub(crate) former_auth: AuthMethod,
    /// The present user has made settings.
    has_set: bool,
    pub(crate) resp3: bool,
    /// The name was set by `HELLO`, which needs no permission for it.
    pub(crate) is_named_by_hello: bool,
    /// The parts that are on, of those that can be switched on or off.
    on: u8,
    /// The parts that are not known.
    doubt: u8,
    names: ChannelNames,
}

impl PartialEq for ReplayState {
    /// How it came about does not count.
    fn eq(&self, other: &Self) -> bool {
        self.is_like(other, true)
    }
}

impl ReplayState {
    /// Bytes of text in it.
    pub(crate) fn weight(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt != 0
    }

    /// Whether one of these parts is unknown.
    pub(crate) fn is_doubted(&self, parts: u8) -> bool {
        self.doubt & parts != 0
    }

    /// Marks these parts as unknown.
    pub(crate) fn doubt(&mut self, parts: u8) {
        self.doubt |= parts;
        if parts & part::SUBSCRIPTIONS != 0 {
            self.names.clear();
        }
    }

    /// The names of the channels and patterns.
    pub(crate) fn names(&self) -> &ChannelNames {
        &self.names
    }

    /// The server reported that there are no subscriptions, so they are known again.
    pub(crate) fn unsubscribed(&mut self) {
        self.names.clear();
        self.doubt &= !part::SUBSCRIPTIONS;
    }

    /// A request of the subscribing group was confirmed for all of its names, of which at most
    /// `most` bytes may be recorded.
    pub(crate) fn subscribe(&mut self, class: Class, words: Option<&[&[u8]]>, most: usize) {
        debug_assert!(class.group() == ClassGroup::Subscribing);
        let names = words
            .and_then(|words| words.get(1..))
            .filter(|_| self.doubt & part::SUBSCRIPTIONS == 0);
        // On these channels the server sends invalidations for other connections, which refer to
        // this connection by its ID.
        let names = names.filter(|names| !names.iter().any(|name| name.starts_with(b"__redis__:")));
        if !names.is_some_and(|names| self.names.accept(class, names, most)) {
            self.doubt(part::SUBSCRIPTIONS);
        }
    }

    /// Whether both are the same, `names` of client and library included.
    pub(crate) fn is_like(&self, other: &Self, names: bool) -> bool {
        let texts = [Text::User, Text::Password, Text::Name, Text::LibName, Text::LibVersion];
        let texts = if names { &texts[..] } else { &texts[..2] };
        let rest = |it: &Self| (it.db, it.auth, it.resp3, it.on, it.doubt);
        rest(self) == rest(other)
            && self.names.sets == other.names.sets
            && texts.iter().all(|text| self.text(*text) == other.text(*text))
    }

    /// The user; `default` if none was named.
    pub(crate) fn user(&self) -> &[u8] {
        if self.auth == AuthMethod::User { self.text(Text::User) } else { b"default" }
    }

    /// The text; empty if it is not set.
    pub(crate) fn text(&self, text: Text) -> &[u8] {
        let (begin, end) = self.range(text);
        // If the range is invalid, `set` has marked everything as unknown.
        self.text.get(begin..end).unwrap_or(&[])
    }

    fn range(&self, text: Text) -> (usize, usize) {
        let before = self.lens.iter().take(text as usize).map(|len| usize::from(*len)).sum();
        (before, before + self.lens.get(text as usize).map_or(0, |len| usize::from(*len)))
    }

    /// Replaces a text. The old bytes are overwritten with zeros.
    pub(crate) fn set(&mut self, text: Text, new: &[u8]) {
        let (begin, end) = self.range(text);
        let (Some((old, after)), Ok(len), Some(slot)) = (
            self.text.split_at_checked(end),
            u16::try_from(new.len()),
            self.lens.get_mut(text as usize),
        ) else {
            return self.doubt(u8::MAX);
        };
        let Some((before, _)) = old.split_at_checked(begin) else { return self.doubt(u8::MAX) };
        *slot = len;
        // Allocated with the final size: a vector that grows leaves copies in freed memory.
        let mut all = Vec::with_capacity(self.text.len() - (end - begin) + new.len());
        all.extend_from_slice(before);
        all.extend_from_slice(new);
        all.extend_from_slice(after);
        self.text = Zeroizing::new(all);
    }

    pub(crate) fn is_on(&self, part: u8) -> bool {
        self.on & part != 0
    }

    fn switch(&mut self, part: u8, on: bool) {
        self.on = if on { self.on | part } else { self.on & !part };
    }

    /// `RESET` was answered with success. The name and version of the library survive it. Whether
    /// `NO-EVICT` does depends on the server: Redis 7.0 leaves it on.
    pub(crate) fn reset(&mut self) {
        let doubt = self.doubt & (part::LIB | part::NO_EVICT) | self.on & part::NO_EVICT;
        let mut fresh = Self { doubt, ..Self::default() };
        fresh.set(Text::LibName, self.text(Text::LibName));
        fresh.set(Text::LibVersion, self.text(Text::LibVersion));
        *self = fresh;
    }

    /// The server accepted a request of that class with these words; `map` is whether its reply was
    /// a map.
    pub(crate) fn accept(&mut self, class: Class, words: Option<&[&[u8]]>, map: bool) {
        if class == Class::Hello {
            self.resp3 = map;
        }
        let Some(known) = words.and_then(|words| self.apply(class, words)) else {
            self.doubt(parts(class));
            return;
        };
        self.doubt &= !known;
        let has_settings = self.db != 0 || self.on != 0;
        self.has_set |= has_settings && !matches!(class, Class::Auth | Class::Hello);
        if !has_settings && self.former_auth != AuthMethod::None {
            self.set_former(AuthMethod::None, &[], &[]);
        }
    }

    /// Applies a request. Returns the parts that are known now; `None` if the words are not
    /// understood.
    fn apply(&mut self, class: Class, words: &[&[u8]]) -> Option<u8> {
        let arguments = words.get(1..)?;
        let switch = [(&b"ON"[..], true), (b"OFF", false)];
        match (class, arguments) {
            (Class::Hello, [] | [_]) => return Some(0),
            (Class::Hello, [_, options @ ..]) => return self.hello(options),
            (Class::Auth, [password]) => self.log_in(None, password)?,
            (Class::Auth, [user, password]) => self.log_in(Some(user), password)?,
            (Class::Select, [db]) => self.db = std::str::from_utf8(db).ok()?.parse().ok()?,
            (Class::SetName, [_, name]) => {
                self.set(Text::Name, name);
                self.is_named_by_hello = false;
            }
            (Class::SetInfo, [_, what, value]) => {
                let texts = [(&b"LIB-NAME"[..], Text::LibName), (b"LIB-VER", Text::LibVersion)];
                self.set(one_of(what, texts)?, value);
                // It sets one of two texts, and the other one may be unknown.
                return Some(0);
            }
            (Class::NoEvict, [_, on]) => self.switch(part::NO_EVICT, one_of(on, switch)?),
            (Class::NoTouch, [_, on]) => self.switch(part::NO_TOUCH, one_of(on, switch)?),
            (Class::ReadOnly, []) => self.switch(part::READ_ONLY, true),
            (Class::ReadWrite, []) => self.switch(part::READ_ONLY, false),
            _ => return None,
        }
        Some(parts(class))
    }

    fn hello(&mut self, mut options: &[&[u8]]) -> Option<u8> {
        let mut known = 0;
        loop {
            options = match options {
                [] => return Some(known),
                [option, user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    self.log_in(Some(user), password)?;
                    known |= part::USER;
                    rest
                }
                [option, name, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    self.set(Text::Name, name);
                    self.is_named_by_hello = true;
                    known |= part::NAME;
                    rest
                }
                _ => return None,
            };
        }
    }

    fn log_in(&mut self, user: Option<&[u8]>, password: &[u8]) -> Option<()> {
        if user.map_or(0, <[u8]>::len).max(password.len()) > usize::from(u16::MAX) {
            return None;
        }
        let is_other = self.text(Text::User) != user.unwrap_or_default();
        if std::mem::take(&mut self.has_set) && is_other && self.auth != AuthMethod::None {
            let former = |text| Zeroizing::new(self.text(text).to_vec());
            let (user, password) = (former(Text::User), former(Text::Password));
            self.set_former(self.auth, &user, &password);
        }
        self.set(Text::User, user.unwrap_or_default());
        self.set(Text::Password, password);
        self.auth = if user.is_some() { AuthMethod::User } else { AuthMethod::Password };
        Some(())
    }

    fn set_former(&mut self, auth: AuthMethod, user: &[u8], password: &[u8]) {
        self.set(Text::FormerUser, user);
        self.set(Text::FormerPassword, password);
        self.former_auth = auth;
    }
}

/// The value of the name that `word` is, in upper or lower case.
fn one_of<T>(word: &[u8], names: [(&[u8], T); 2]) -> Option<T> {
    names.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Memory per name in addition to its bytes: its entry in a tree node, and its allocation.
const NAME_OVERHEAD: usize = 64;

/// The three kinds of subscription, which the server keeps separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

/// All kinds, each with its command.
pub(crate) const SUBSCRIPTION_KINDS: [(SubscriptionKind, &[u8]); 3] = [
    (SubscriptionKind::Channel, b"SUBSCRIBE"),
    (SubscriptionKind::Pattern, b"PSUBSCRIBE"),
    (SubscriptionKind::Shard, b"SSUBSCRIBE"),
];

/// The kind that a request of that class concerns, and whether it subscribes.
fn subscription_kind(class: Class) -> Option<(SubscriptionKind, bool)> {
    Some(match class {
        Class::Subscribe => (SubscriptionKind::Channel, true),
        Class::Unsubscribe => (SubscriptionKind::Channel, false),
        Class::PSubscribe => (SubscriptionKind::Pattern, true),
        Class::PUnsubscribe => (SubscriptionKind::Pattern, false),
        Class::SSubscribe => (SubscriptionKind::Shard, true),
        Class::SUnsubscribe => (SubscriptionKind::Shard, false),
        _ => return None,
    })
}

/// The names of the channels and patterns that a session is subscribed to, for subscribing to them
/// again on another connection.
///
/// The names are copied from the requests and recorded with the last confirmation: names that the
/// server has not confirmed do not count. Their size is limited per session
/// ([`Limits::names`](crate::Limits::names)) and by a [budget](crate::ledger::budget) of the
/// process: a gateway may subscribe to ten thousand channels on one connection, but not on each of
/// ten thousand connections. Names are recorded completely or not at all; without them, the session
/// is pinned.
#[derive(Default)]
pub(crate) struct ChannelNames {
    sets: [BTreeSet<Box<[u8]>>; SUBSCRIPTION_KINDS.len()],
    /// The bytes that they occupy.
    share: Share,
}

impl ChannelNames {
    /// The bytes that they occupy.
    pub(crate) fn weight(&self) -> usize {
        self.share.bytes()
    }

    /// The number of names of each kind, in the order of [`SUBSCRIPTION_KINDS`].
    pub(crate) fn counts(&self) -> [usize; SUBSCRIPTION_KINDS.len()] {
        self.sets.each_ref().map(BTreeSet::len)
    }

    /// The names of one kind.
    pub(crate) fn of(&self, kind: SubscriptionKind) -> impl Iterator<Item = &[u8]> {
        self.sets.get(kind as usize).into_iter().flatten().map(|name| &**name)
    }

    /// A request of that class for `names` was confirmed. False if they would exceed `most` bytes
    /// or the budget; then all names are dropped.
    pub(crate) fn accept(&mut self, class: Class, names: &[&[u8]], most: usize) -> bool {
        let Some((kind, subscribes)) = subscription_kind(class) else { return false };
        if !subscribes && names.is_empty() {
            self.remove_all(kind);
            return true;
        }
        for name in names {
            if !subscribes {
                self.remove(kind, name);
            } else if !self.add(kind, name, most) {
                self.clear();
                return false;
            }
        }
        true
    }

    fn add(&mut self, kind: SubscriptionKind, name: &[u8], most: usize) -> bool {
        let Some(set) = self.sets.get_mut(kind as usize) else { return false };
        if set.contains(name) {
            return true;
        }
        let weight = NAME_OVERHEAD + name.len();
        let all = self.share.bytes() + weight;
        all <= most && self.share.grow_to(all) && set.insert(name.into())
    }

    fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        if self.sets.get_mut(kind as usize).is_some_and(|set| set.remove(name)) {
            self.share.give(NAME_OVERHEAD + name.len());
        }
    }

    fn remove_all(&mut self, kind: SubscriptionKind) {
        let Some(set) = self.sets.get_mut(kind as usize) else { return };
        let gone = std::mem::take(set);
        self.share.give(gone.iter().map(|name| NAME_OVERHEAD + name.len()).sum());
    }

    /// Drops all names.
    pub(crate) fn clear(&mut self) {
        self.sets = Default::default();
        self.share.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::{ChannelNames, Class, NAME_OVERHEAD, Share};
    use crate::ledger::budget::Budget;

    static TIGHT: Budget = Budget::new(3 * NAME_OVERHEAD + 6);

    #[test]
    fn shares_one_budget_among_all_sessions() {
        let within = || ChannelNames { share: Share::of(&TIGHT), ..ChannelNames::default() };
        let (mut one, mut other) = (within(), within());
        assert!(one.accept(Class::Subscribe, &[b"ab", b"cd", b"ab"], 1000));
        assert_eq!((one.weight(), one.counts()), (2 * NAME_OVERHEAD + 4, [2, 0, 0]));
        assert!(other.accept(Class::PSubscribe, &[b"p*"], 1000));
        assert!(!other.accept(Class::SSubscribe, &[b""], 1000), "beyond the budget");
        assert_eq!((other.weight(), other.counts()), (0, [0; 3]), "names are not recorded in part");
        assert!(
            one.accept(Class::SSubscribe, &[b"ab"], 1000),
            "one session can use what another has returned"
        );
        assert!(one.accept(Class::Unsubscribe, &[b"ab", b"xy"], 1000));
        assert_eq!(one.counts(), [1, 0, 1]);
        assert!(
            one.accept(Class::Unsubscribe, &[], 1000) && one.accept(Class::PUnsubscribe, &[], 1000)
        );
        assert_eq!((one.weight(), one.counts()), (NAME_OVERHEAD + 2, [0, 0, 1]));
        assert!(!one.accept(Class::Subscribe, &[b"ab"], 2 * NAME_OVERHEAD), "beyond its own limit");
        assert!(other.accept(Class::Subscribe, &[b"ab"], 1000));
        drop((one, other));
        assert_eq!(TIGHT.left(), 3 * NAME_OVERHEAD + 6);
    }
}
