//! Threads that stand back: work that nobody waits for in, the processor left to those that serve.
//!
//! A low priority alone shares a full processor well, but who wakes up for a pick may still wait until the
//! slice ends that a low thread is in. So these ask for slices a little longer than the usual ones: since
//! Linux 6.12 a thread with shorter ones that wakes up interrupts them at once, while shares stay what
//! they were. `SCHED_IDLE` would do that too, and starve on a full machine with whatever lock it holds.
//! Neither needs a privilege.
//!
//! *Source*: Zijlstra, "sched/eevdf: Allow shorter slices to wakeup-preempt" and "Use
//! `sched_attr::sched_runtime` to set request/slice suggestion", Linux 6.12 (2024); `sched(7)`.

use std::io;

/// On a full machine a thread has a thirtieth of what one that serves has. With 10 it would have a tenth, in
/// pieces of some milliseconds for which now and then a pick waits; with 19 a seventieth, and a policy come
/// after minutes. Of 100,000 calls to a thread that has nine tenths of a processor to do, beside one like
/// this, 171 waited more than 2 ms at 10, 76 with long slices, 34 at 15 with them, and 25 with nobody beside.
const NICE: i32 = 15;
/// In nanoseconds: the usual slice is at most 3 ms, by the number of processors. Older systems ignore it.
const SLICE_NS: u64 = 4_000_000;

/// Lets the calling thread, and those that it starts, stand back from now on; by its priority alone where
/// the system knows no more.
///
/// # Errors
/// The system refuses that, too; the thread goes on as before.
pub(crate) fn stand_back() -> io::Result<()> {
    // On Linux the priority of a process is that of its calling thread alone.
    set_nice_and_slice().or_else(|_| Ok(rustix::process::setpriority_process(None, NICE)?))
}

#[allow(unsafe_code, reason = "no well-kept library has this system call")]
fn set_nice_and_slice() -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;
    const SIZE: u32 = 48;
    const { assert!(size_of::<libc::sched_attr>() == SIZE as usize) };
    let mut attributes = libc::sched_attr {
        size: SIZE,
        sched_policy: libc::SCHED_OTHER.cast_unsigned(),
        sched_flags: 0,
        sched_nice: NICE,
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes of a structure that outlives the call, and writes nothing but
    // that size, where it knows fewer fields.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw mut attributes, NO_FLAGS)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_stands_back_does_so() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let other = std::thread::spawn(move || {
            stand_back().unwrap();
            niceness()
        });
        assert_eq!(other.join().unwrap(), NICE);
        assert_eq!(niceness(), before);
    }
}
