//! The thread of one worker: its tasks, its listeners and its event loop.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use drain::{Drain, Phase};

use crate::address::ListenerId;
use crate::context::WorkerContext;
use crate::io::pipe;
use crate::listener::accept_loop;
use crate::listener::inbox::{Inboxes, WorkerCommand};
use crate::listener::listen_socket::ListenSocket;
#[cfg(debug_assertions)]
use crate::runtime::heartbeat;
use crate::runtime::heartbeat::Heartbeat;
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Panicked, Tasks, WorkerHandle};
use crate::runtime::timers::TimerThread;
use crate::workers::WorkerError;
use crate::workers::session_visitor::SessionVisitor;

/// A worker before its thread runs.
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) heartbeat: Heartbeat,
    pub(super) drain: Drain,
    pub(super) clock: TimerThread,
    pub(super) handle: Arc<WorkerHandle>,
    pub(super) inboxes: Inboxes,
    pub(super) reactor: Reactor,
    /// Whether the system is known not to splice.
    pub(super) splice_disabled: bool,
    /// Lists and ends sessions.
    pub(super) visitor: Option<SessionVisitor>,
}

impl Worker {
    pub(super) fn run(mut self) -> Result<(), WorkerError> {
        // In this order: the tasks are dropped first and still find what they need.
        let _clock = self.clock.enter();
        reactor::install(self.reactor);
        if self.splice_disabled {
            pipe::disable();
        }
        let (worker, drain) = (self.number, self.drain);
        let mut tasks = Tasks::new(self.handle);
        let mut listeners = Listeners { by_id: BTreeMap::new(), worker, inboxes: self.inboxes };
        let end = drain.clone();
        tasks::spawn_essential(async move { end.reached(Phase::Stopped).await });
        let (mut events, mut visits) = (reactor::no_events(), false);
        self.heartbeat.begin();
        while drain.phase() < Phase::Stopped {
            #[cfg(debug_assertions)]
            heartbeat::stall_if_asked(worker);
            tasks.run_round().map_err(|Panicked| WorkerError::Panicked { worker })?;
            // Without a limit of its own: the next beat ends it.
            let wait = (visits || tasks.is_busy()).then_some(&reactor::NO_WAIT);
            let is_woken = reactor::poll_events(&mut events, wait, |key| tasks.wake(key))
                .map_err(|source| WorkerError::Loop { worker, source })?;
            if is_woken {
                // Not in every turn, which would read the clock for each event of a calm worker.
                self.heartbeat.beat();
                tasks.collect_remote_wakes();
                listeners.receive();
            }
            if is_woken || visits {
                visits = self.visitor.as_mut().is_some_and(|visitor| visitor.run(&mut tasks));
            }
        }
        Ok(())
    }
}

/// The listeners of one worker.
struct Listeners {
    by_id: BTreeMap<ListenerId, Arc<WorkerContext>>,
    worker: usize,
    inboxes: Inboxes,
}

impl Listeners {
    /// Takes what other threads have sent.
    fn receive(&mut self) {
        for command in self.inboxes.commands() {
            if let Err(error) = self.execute(command) {
                let worker = self.worker;
                tracing::error!(
                    worker, %error,
                    "cannot serve a listening socket, other workers accept its clients"
                );
            }
        }
    }

    fn execute(&mut self, command: WorkerCommand) -> io::Result<()> {
        match command {
            WorkerCommand::Attach(context) => {
                tasks::spawn_essential(Arc::clone(&context).forward_events());
                self.by_id.insert(context.listener.id, context);
            }
            WorkerCommand::Listen(id, socket, addr, permit) => {
                let Some(context) = self.by_id.get(&id) else { return Ok(()) };
                let listen_socket = ListenSocket::new(socket, &addr)?;
                let (service, worker) = (&*context.shared.service.name, self.worker);
                tracing::debug!(service, %addr, worker, "accepting connections");
                tasks::spawn_essential(accept_loop::serve(
                    listen_socket,
                    Arc::clone(context),
                    self.inboxes.clone(),
                    permit,
                ));
            }
            WorkerCommand::Detach(id) => drop(self.by_id.remove(&id)),
            WorkerCommand::Serve(id, client, _permit) => {
                if let Some(context) = self.by_id.get(&id)
                    && accept_loop::start_session(client, context).is_err()
                {
                    context.counters.accept_errors.increment();
                }
            }
        }
        Ok(())
    }
}
