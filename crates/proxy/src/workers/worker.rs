//! The thread of one worker: its tasks, its listeners and its event loop.

use std::sync::Arc;
use std::time::Duration;

use drain::{Drain, Phase};
use tokio::sync::mpsc;

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::io::pipe;
use crate::io::stream::SocketStream;
use crate::limits::Admission;
use crate::listener::inbox::Inboxes;
use crate::listener::listen_socket::ListenSocket;
use crate::listener::{WorkerListener, accept_loop};
use crate::runtime::heartbeat::{self, Heartbeat};
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Panicked, Tasks, WorkerHandle};
use crate::runtime::timers::TimerThread;
use crate::session::Session;
use crate::workers::WorkerError;
use crate::workers::session_visitor::SessionVisitor;

/// Starts a session as a task of this thread's worker.
fn start_session(
    stream: SocketStream,
    peer: Peer,
    context: Arc<WorkerContext>,
    admission: Admission,
) {
    tasks::spawn(Session::new(peer, context, admission).run(stream));
}

/// Reports how a worker ended, even after a panic.
pub(super) struct ExitReport {
    pub(super) worker: usize,
    pub(super) end: mpsc::Sender<Result<(), WorkerError>>,
    pub(super) result: Option<Result<(), WorkerError>>,
}

impl Drop for ExitReport {
    fn drop(&mut self) {
        let result =
            self.result.take().unwrap_or(Err(WorkerError::Panicked { worker: self.worker }));
        // The channel has capacity for each worker; the receiver may be gone.
        drop(self.end.try_send(result));
    }
}

/// A worker before its thread runs.
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) listeners: Vec<WorkerListener>,
    pub(super) contexts: Vec<Arc<WorkerContext>>,
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
    pub(super) fn run(self) -> Result<(), WorkerError> {
        let Self {
            number: worker,
            listeners,
            contexts,
            heartbeat,
            drain,
            clock,
            handle,
            inboxes,
            reactor,
            splice_disabled,
            visitor,
        } = self;
        // In this order: the tasks are dropped first and still find what they need.
        let _clock = clock.enter();
        let _reactor = reactor::install(reactor);
        if splice_disabled {
            pipe::disable();
        }
        let mut tasks = Tasks::new(handle);
        if let Some(visitor) = visitor {
            tasks.set_visitor(Box::new(visitor));
        }
        for context in &contexts {
            tasks::spawn_essential(Arc::clone(context).forward_events());
        }
        for listener in listeners {
            let Some(context) = contexts.get(listener.service) else { continue };
            // The permit is taken here and not in the task, so that a drain that begins immediately
            // waits for it.
            let permit = drain.accept_permit();
            let listen_socket = ListenSocket::new(listener.socket, &listener.addr);
            let listen_socket =
                listen_socket.map_err(|source| WorkerError::Listener { worker, source })?;
            let service = &*context.shared.service.name;
            tracing::debug!(service, addr = %listener.addr, worker, "accepting connections");
            let target = (listener.service, inboxes.clone());
            tasks::spawn_essential(accept_loop::serve(
                listen_socket,
                Arc::clone(context),
                target,
                start_session,
                permit,
            ));
        }
        let end = drain.clone();
        tasks::spawn_essential(async move { end.reached(Phase::Stopped).await });
        let mut events = Vec::new();
        heartbeat.begin();
        while drain.phase() < Phase::Stopped {
            #[cfg(debug_assertions)]
            heartbeat::stall_if_asked(worker);
            tasks.run_round().map_err(|Panicked| WorkerError::Panicked { worker })?;
            heartbeat.beat();
            let wait = if tasks.is_busy() { Duration::ZERO } else { heartbeat::BEAT_INTERVAL };
            if reactor::poll_events(&mut events, wait)
                .map_err(|source| WorkerError::Loop { worker, source })?
            {
                tasks.collect_remote_wakes();
                for client in inboxes.handed_over() {
                    if let Some(context) = contexts.get(client.service) {
                        accept_loop::start_handed_over(client, context, start_session);
                    }
                }
            }
        }
        Ok(())
    }
}
