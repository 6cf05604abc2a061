//! The limits and figures of the operating system: memory, cgroups, descriptors, and Unix socket
//! files.

pub mod cgroup;
pub mod connection_capacity;
pub mod descriptors;
pub mod memory;
pub mod process_usage;
pub(crate) mod socket_file;
pub(crate) mod threads;
pub(crate) mod unix_sockets;
