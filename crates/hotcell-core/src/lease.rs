//! The lease machine.
