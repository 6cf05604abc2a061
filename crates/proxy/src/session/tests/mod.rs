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
