//! The limits and figures of the operating system: memory, cgroups, descriptors, and Unix socket
//! files.

pub(crate) mod cgroup;
pub(crate) mod connection_capacity;
pub(crate) mod descriptors;
pub(crate) mod memory;
pub(crate) mod process_usage;
pub(crate) mod socket_file;
pub(crate) mod threads;
pub(crate) mod unix_sockets;
