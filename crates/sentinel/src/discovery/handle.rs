//! The interface of discovery to the rest of the process: snapshots, hints, commands, what commands
//! have changed on the servers of a service, and the heartbeat.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::clock;
use crate::link::login::Login;
use crate::net::resolve::Resolver;
use crate::{DiscoverySnapshot, FollowOrder, MachineEvent, NodeAddr, Pause, PriorityChange};

/// Interval of checks while a process that stops waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What commands of operators have changed on the servers of a service and not undone yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationsSnapshot {
    /// The nodes whose `replica-priority` is not what it was, or may not be.
    pub changed_priorities: Vec<PriorityChange>,
}

/// Credentials and resolver for connections to the servers of a service that are made outside of
/// discovery.
#[derive(Debug)]
pub(crate) struct ConnectionSettings {
    /// The name of the service, in logs.
    pub(crate) name: Arc<str>,
    /// Sentinel's name of the master.
    pub(crate) master_name: Arc<str>,
    pub(crate) auth: Login,
    /// Replaced if the service no longer shares its credentials with the same other services.
    pub(crate) sentinel_auth: ArcSwap<Login>,
    pub(crate) resolver: Resolver,
}

/// Identifies a command to discovery, to query whether it was executed or to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandId(u64);

impl CommandId {
    /// The number under which a snapshot has the answer to an order.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Commands that discovery has not executed yet, oldest first. A command never replaces another
/// one, because the client of each is answered that it was executed.
#[derive(Debug, Default)]
struct CommandQueue {
    last_id: u64,
    pending: VecDeque<(CommandId, MachineEvent)>,
}

impl CommandQueue {
    fn push(&mut self, event: impl FnOnce(u64) -> MachineEvent) -> CommandId {
        self.last_id += 1;
        self.pending.push_back((CommandId(self.last_id), event(self.last_id)));
        CommandId(self.last_id)
    }

    /// Returns whether the command was pending.
    fn remove(&mut self, command: CommandId) -> bool {
        let before = self.pending.len();
        self.pending.retain(|(number, _)| *number != command);
        self.pending.len() < before
    }
}

/// The handle to one service's discovery.
#[derive(Debug, Clone)]
pub struct DiscoveryHandle {
    snapshot: Arc<ArcSwap<DiscoverySnapshot>>,
    hinted: Arc<AtomicBool>,
    hinted_by_reader: Arc<AtomicBool>,
    commands: Arc<Mutex<CommandQueue>>,
    switchover_active: Arc<AtomicBool>,
    operations: Arc<Mutex<OperationsSnapshot>>,
    stopping: Arc<AtomicBool>,
    service_removed: Arc<AtomicBool>,
    connection_settings: Arc<ConnectionSettings>,
    wake: Arc<Notify>,
}

impl DiscoveryHandle {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<DiscoverySnapshot>>,
        connection_settings: ConnectionSettings,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            snapshot,
            hinted: Arc::default(),
            hinted_by_reader: Arc::default(),
            commands: Arc::default(),
            switchover_active: Arc::default(),
            operations: Arc::default(),
            stopping: Arc::default(),
            service_removed: Arc::default(),
            connection_settings: Arc::new(connection_settings),
            wake,
        }
    }

    pub(crate) fn connection_settings(&self) -> &ConnectionSettings {
        &self.connection_settings
    }

    /// Keeps the gate closed as `pause` says. The next snapshot shows it.
    pub fn pause(&self, pause: Pause) -> CommandId {
        self.command(|_| MachineEvent::Pause(pause))
    }

    /// Ends a pause, if there is one.
    pub fn resume(&self) -> CommandId {
        self.command(|_| MachineEvent::Resume)
    }

    /// Orders to follow `addr` without the sentinels for at most `lasts`; `force` accepts a node
    /// with another history. A snapshot has the answer under the number of the command.
    pub fn follow(&self, addr: NodeAddr, lasts: Duration, force: bool) -> CommandId {
        self.command(|id| MachineEvent::Follow(FollowOrder { id, addr, lasts, force }))
    }

    /// Ends an override, if there is one.
    pub fn unfollow(&self) -> CommandId {
        self.command(|_| MachineEvent::Unfollow)
    }

    fn command(&self, event: impl FnOnce(u64) -> MachineEvent) -> CommandId {
        let command = self.commands().push(event);
        self.wake.notify_one();
        command
    }

    fn commands(&self) -> MutexGuard<'_, CommandQueue> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command to execute next.
    pub(crate) fn next_command(&self) -> Option<(CommandId, MachineEvent)> {
        self.commands().pending.front().cloned()
    }

    /// Called when the command has been executed.
    pub(crate) fn mark_executed(&self, command: CommandId) {
        self.commands().remove(command);
    }

    /// Whether the command has not been executed yet.
    #[must_use]
    pub fn is_pending(&self, command: CommandId) -> bool {
        self.commands().pending.iter().any(|(number, _)| *number == command)
    }

    /// Cancels a command. `false` if it was already executed.
    #[must_use]
    pub fn cancel(&self, command: CommandId) -> bool {
        self.commands().remove(command)
    }

    /// Returns whether a switchover may begin: at most one runs at a time.
    pub(crate) fn begin_switchover(&self) -> bool {
        !self.switchover_active.swap(true, Ordering::AcqRel)
    }

    /// Whether a switchover is in progress.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        self.switchover_active.load(Ordering::Acquire)
    }

    pub(crate) fn end_switchover(&self) {
        self.switchover_active.store(false, Ordering::Release);
    }

    fn operations(&self) -> MutexGuard<'_, OperationsSnapshot> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What commands have changed on the servers and not undone yet.
    #[must_use]
    pub fn operations_snapshot(&self) -> OperationsSnapshot {
        self.operations().clone()
    }

    pub(crate) fn add_changed_priority(&self, change: PriorityChange) {
        self.operations().changed_priorities.push(change);
    }

    pub(crate) fn remove_changed_priority(&self, change: &PriorityChange) {
        self.operations().changed_priorities.retain(|it| it != change);
    }

    /// Called when the process stops: a switchover ends if no failover was ordered yet, and no
    /// new one begins.
    pub fn stop_operations(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The same when a reload removes the service, until it is configured again: its last session
    /// may end later.
    pub fn set_service_removed(&self, is_removed: bool) {
        self.service_removed.store(is_removed, Ordering::Release);
    }

    /// Whether no operation may begin.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_process_stopping() || self.service_removed.load(Ordering::Acquire)
    }

    /// Whether the whole process stops.
    pub(crate) fn is_process_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Completes when the process stops or the service is removed.
    pub(crate) async fn stopped(&self) {
        while !self.is_stopping() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Waits until every change of a command is undone, at most for `limit`. Whether it is.
    pub async fn wait_operations_undone(&self, limit: Duration) -> bool {
        let since = clock::now();
        loop {
            if !self.is_switching() && *self.operations() == OperationsSnapshot::default() {
                return true;
            }
            if clock::since(since) >= limit {
                return false;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// The latest snapshot, at most a quarter of a second old.
    #[must_use]
    pub fn snapshot(&self) -> Arc<DiscoverySnapshot> {
        self.snapshot.load_full()
    }

    /// Hints that the data plane saw a sign of trouble. Cheap, and may be called any number of
    /// times.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// The same for a session on a replica: the replicas are queried again, the master is not
    /// suspected.
    pub fn hint_from_reader(&self) {
        if !self.hinted_by_reader.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// Whether a reader gave a hint since the last call.
    pub(crate) fn take_reader_hint(&self) -> bool {
        self.hinted_by_reader.load(Ordering::Relaxed)
            && self.hinted_by_reader.swap(false, Ordering::AcqRel)
    }

    /// Whether there was a hint since the last call.
    pub(crate) fn take_hint(&self) -> bool {
        self.hinted.load(Ordering::Relaxed) && self.hinted.swap(false, Ordering::AcqRel)
    }
}

/// Updated in each iteration of discovery's loop.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    start: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), beat_ms: Arc::new(AtomicU64::new(0)) }
    }

    pub(crate) fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(ms, Ordering::Relaxed);
    }

    /// The time since the last iteration of the loop, which runs at least once per second.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.start
            .elapsed()
            .saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_commands_until_executed_or_cancelled() {
        let mut commands = CommandQueue::default();
        let pause = Pause { since: Instant::now(), until: Instant::now(), ends_with_commit: false };
        let (first, second) = (
            commands.push(|_| MachineEvent::Pause(pause)),
            commands.push(|_| MachineEvent::Resume),
        );
        assert_ne!(first, second);
        // The newer command must not replace the older one, which would be answered without having
        // been executed.
        assert_eq!(commands.pending.front().map(|(command, _)| *command), Some(first));
        assert!(commands.remove(first), "cancelled in time");
        assert!(!commands.remove(first), "cancelled twice");
        assert_eq!(commands.pending.front().map(|(command, _)| *command), Some(second));
        assert!(commands.remove(second) && commands.pending.is_empty());
    }
}
