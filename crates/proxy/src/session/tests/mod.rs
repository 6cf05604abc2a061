//! Sessions over real sockets, by what they have to withstand.

mod idle_tests;
mod pool_tests;
mod pump_tests;
mod replica_tests;
mod rest_tests;
mod session_tests;
mod target_tests;
mod target_tls_fault_tests;
mod target_tls_reader_tests;
mod target_tls_tests;
mod tls_handshake_tests;
mod tls_session_tests;

use std::future::poll_fn;

use crate::end_reason::EndReason;
use crate::io::stream::ByteStream;
use crate::session::pump::{Pump, Stop, Stopped};
use crate::session::report::SessionBase;
use crate::session::upstream::TargetStream;

impl<C: ByteStream, U: TargetStream> Pump<C, U> {
    /// Pumps until there is a reason to stop, and stops as a session does.
    pub(crate) async fn run(mut self, base: &SessionBase) -> Stopped {
        let mut watch = None;
        let stop = poll_fn(|cx| self.poll_watched(cx, base, &mut watch)).await;
        if stop == Stop::End(EndReason::Fenced) {
            return Box::new(self).stop_fenced(base).await.0;
        }
        self.stop(stop)
    }
}
