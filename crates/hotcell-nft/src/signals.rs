//! Signals that the C library keeps for itself, and so does not let a program set back.
//!
//! glibc's `posix_spawn` leaves them ignored in what it starts, and what is ignored stays ignored over
//! every execution from there on, down to the commands of a sandbox.

use std::io;

use nftnl::nftnl_sys::libc;

/// `SIGCANCEL` and `SIGSETXID`.
const INTERNAL: [libc::c_long; 2] = [32, 33];

/// The kernel's `struct sigaction` with the default action: no handler, no flag, no mask.
#[repr(C)]
struct DefaultAction([u64; 4]);

/// Has this process, and what it starts by `fork`, take those signals as a process does that nobody
/// changed. Call it while there is no other thread: they are the C library's.
///
/// # Errors
/// When the kernel refuses.
pub fn default_internal_signals() -> io::Result<()> {
    let action = DefaultAction([0; 4]);
    for signal in INTERNAL {
        // SAFETY: the action is as long as the kernel reads (x86-64 and arm64: handler, flags,
        // restorer, 64 bits of mask), outlives the call, and names no handler; there is no old action
        // to write.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const action,
                std::ptr::null_mut::<DefaultAction>(),
                size_of::<u64>(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
