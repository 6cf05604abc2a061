//! The order in which requests leave on one connection, and how many of each client.
//!
//! Clients take turns in the order in which their requests arrived. In a turn, each may send a
//! quantum; a client with more to send waits for the turns of the others. So a client with a deep
//! pipeline delays another one by a quantum, not by its pipeline. If the connection has no room for
//! the next request, nothing overtakes it: small requests could otherwise delay a large one for as
//! long as there are any.

use std::collections::VecDeque;

use crate::shared::upstream_ledger::{Load, MemberId};

/// What a client may send in one turn. One request may exceed the bytes.
pub(crate) const QUANTUM: Load = Load { requests: 64, bytes: 16 * 1024 };

/// What a client has sent in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Taken {
    pub(crate) sent: Load,
    /// Whether another whole request is ready.
    pub(crate) more: bool,
    /// Whether the only request is a script.
    pub(crate) script: bool,
}

/// The clients of one connection with requests to send, in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct TurnQueue {
    waiting: VecDeque<MemberId>,
    quantum: Load,
}

impl TurnQueue {
    /// With that quantum.
    pub(crate) fn new(quantum: Load) -> Self {
        Self { waiting: VecDeque::new(), quantum }
    }

    /// A client has a whole request. It must not be in the queue already: the caller keeps that
    /// flag with the client, which is where it has it at hand.
    pub(crate) fn wait(&mut self, member: MemberId) {
        self.waiting.push_back(member);
    }

    /// What was taken of these clients, in this order, was not sent: they are first again. A client
    /// may be named several times.
    pub(crate) fn put_back(&mut self, members: &[MemberId]) {
        let mut seen = std::collections::HashSet::new();
        let rest = std::mem::take(&mut self.waiting);
        let all = members.iter().copied().chain(rest);
        self.waiting = all.filter(|member| seen.insert(*member)).collect();
    }

    /// A client left, or no longer sends here.
    pub(crate) fn leave(&mut self, member: MemberId) {
        self.waiting.retain(|it| *it != member);
    }

    /// The number of clients that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no client waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives turns until the room is used up or no client waits. `take` moves requests of a client
    /// to the write, at most the given quantum, or one request within the room if that is larger.
    pub(crate) fn give_turns(
        &mut self,
        mut room: Load,
        mut take: impl FnMut(MemberId, Load, Load) -> Option<Taken>,
    ) {
        while let Some(member) = self.waiting.front().copied() {
            let quantum = Load {
                requests: self.quantum.requests.min(room.requests),
                bytes: self.quantum.bytes.min(room.bytes),
            };
            if quantum.requests == 0 {
                break;
            }
            let Some(Taken { sent, more, .. }) = take(member, quantum, room) else { break };
            self.waiting.pop_front();
            room = room.less(sent);
            // A client without a request gets no further turn, whatever it says.
            if sent.requests > 0 && more {
                self.waiting.push_back(member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Load = Load { requests: 1000, bytes: 100_000 };

    /// Clients with requests of one size; a turn sends what the quantum allows.
    fn turn(queue: &mut TurnQueue, left: &mut [(u32, u32)], room: Load) -> Vec<(u64, u32)> {
        let mut order = Vec::new();
        queue.give_turns(room, |member, quantum, room| {
            let (count, size) = &mut left[member.0 as usize];
            if *size > room.bytes {
                return None;
            }
            let requests = (quantum.bytes / *size).max(1).min(quantum.requests).min(*count);
            *count -= requests;
            order.push((member.0, requests));
            let sent = Load { requests, bytes: requests * *size };
            Some(Taken { sent, more: *count > 0, script: false })
        });
        order
    }

    fn queue(members: u64) -> TurnQueue {
        let mut queue = TurnQueue::new(Load { requests: 4, bytes: 100 });
        (0..members).for_each(|member| queue.wait(MemberId(member)));
        queue
    }

    #[test]
    fn limits_each_client_to_a_quantum_per_turn() {
        let mut queue = queue(3);
        let mut left = [(10, 10), (1, 10), (5, 50)];
        let order = turn(&mut queue, &mut left, ROOM);
        assert_eq!(order, [(0, 4), (1, 1), (2, 2), (0, 4), (2, 2), (0, 2), (2, 1)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn lets_no_small_request_overtake_one_without_room() {
        let mut queue = queue(2);
        let mut left = [(1, 5_000), (9, 10)];
        assert_eq!(turn(&mut queue, &mut left, Load { requests: 9, bytes: 4_999 }), []);
        let order = turn(&mut queue, &mut left, Load { requests: 9, bytes: 5_010 });
        assert_eq!(order, [(0, 1), (1, 1)], "one request may exceed the quantum, not the room");
        assert!(!queue.is_empty());
    }

    #[test]
    fn stops_without_room_and_continues_in_order() {
        let mut queue = queue(3);
        let mut left = [(2, 10); 3];
        assert_eq!(turn(&mut queue, &mut left, Load { requests: 3, bytes: 100 }), [(0, 2), (1, 1)]);
        queue.leave(MemberId(2));
        assert_eq!(turn(&mut queue, &mut left, ROOM), [(1, 1)]);
    }

    #[test]
    fn puts_unsent_clients_back_in_front() {
        let mut queue = queue(4);
        let mut left = [(5, 10), (1, 10), (2, 10), (1, 10)];
        let order = turn(&mut queue, &mut left, Load { requests: 6, bytes: 1000 });
        assert_eq!(order, [(0, 4), (1, 1), (2, 1)]);
        queue.put_back(&[MemberId(0), MemberId(1), MemberId(2)]);
        let mut left = [(5, 10), (1, 10), (2, 10), (1, 10)];
        let order = turn(&mut queue, &mut left, ROOM);
        assert_eq!(order, [(0, 4), (1, 1), (2, 2), (3, 1), (0, 1)]);
    }

    #[test]
    fn ends_for_clients_that_send_nothing() {
        let mut queue = queue(2);
        queue.give_turns(ROOM, |_, _, _| Some(Taken { more: true, ..Taken::default() }));
        assert!(queue.is_empty());
    }
}
