//! Threads that stand back: work that nobody waits for in, the processor left to those that serve.

use rustix::io::Errno;
use rustix::process::setpriority_process;

/// On a full machine a thread has a thirtieth of what one that serves has. With 10 it would have a tenth, in
/// pieces of some milliseconds for which now and then a pick waits; with 19 a seventieth, and a policy come
/// after minutes. Of 100,000 calls to a thread that has nine tenths of a processor to do, beside one like
/// this, 71 to 171 waited more than 2 ms at 10, 28 to 34 at 15, and 25 with nobody beside.
const NICE: i32 = 15;

/// Lets the calling thread stand back from now on.
///
/// # Errors
/// The system refuses it; the thread goes on as before.
pub(crate) fn stand_back() -> Result<(), Errno> {
    // On Linux a process's priority is its calling thread's alone.
    setpriority_process(None, NICE)
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
