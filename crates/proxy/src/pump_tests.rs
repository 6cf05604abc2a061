//! Stands in for tests that are being written.
