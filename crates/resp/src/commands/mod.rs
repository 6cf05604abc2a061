//! What each command means for its session: the command table and the classes it assigns.

pub(crate) mod class;
pub(crate) mod declared;
pub(crate) mod known;
pub(crate) mod maintenance;
pub(crate) mod table;
pub(crate) mod verdict;
