//! Processes that stop, continue, crash and start.

use super::event::ProcessInput;
use super::{Event, Net, Pid};

impl Net {
    pub(crate) fn stop(&mut self, pid: Pid) {
        if !std::mem::replace(&mut self.processes[pid].stopped, true) {
            self.processes[pid].stopped_at = self.now;
        }
    }

    /// Continues a stopped process: queued inputs are handled in order. `suspended`: its monotonic
    /// clock stood still.
    pub(crate) fn resume(&mut self, pid: Pid, suspended: bool) {
        let now = self.now;
        let process = &mut self.processes[pid];
        if !std::mem::replace(&mut process.stopped, false) {
            return;
        }
        if suspended {
            process.suspended += now - process.stopped_at;
        }
        let incarnation = process.incarnation;
        self.at(now, Event::To(pid, incarnation, ProcessInput::Continued));
        for (incarnation, input) in std::mem::take(&mut self.processes[pid].inbox) {
            self.at(now, Event::To(pid, incarnation, input));
        }
    }

    /// Ends a process. `silent`: its host is gone with it, so no peer is notified.
    pub(crate) fn crash(&mut self, pid: Pid, silent: bool) {
        let process = &mut self.processes[pid];
        (process.up, process.stopped) = (false, false);
        process.inbox.clear();
        for connection in 0..self.conns.len() {
            for side in 0..2 {
                if self.conns[connection].ends[side].pid == pid
                    && self.conns[connection].ends[side].open
                {
                    self.conns[connection].ends[side].open = false;
                    if !silent {
                        self.finish(connection, 1 - side);
                    }
                }
            }
        }
        self.processes[pid].incarnation += 1;
    }

    pub(crate) fn start(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        (process.up, process.stopped) = (true, false);
        process.clock_off = 0;
    }
}
