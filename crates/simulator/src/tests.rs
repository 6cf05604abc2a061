//! The model against what was measured with real servers.
