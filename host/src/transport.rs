//! Frames in and out: to the groups on every usable interface and to unicast destinations; and what
//! arrives on the report port, by multicast, unicast or TCP, with the time it arrived.
//!
//! [`Outlet`] sends, [`Inlet`] receives. Interfaces are looked at again as soon as the kernel says
//! that one came, went or changed address, so that nothing is given up and nothing is missed for
//! long. An error ends no loop: it is counted, logged once, and tried again with the next frame.
//! Nothing here knows what a report is.

mod batch;
mod changes;
mod connected;
mod ear;
mod frames;
mod inlet;
mod interface;
mod listener;
#[cfg(test)]
mod log;
mod outlet;
mod receive;
mod silence;
mod status;
mod stream;
mod unicast;

pub use batch::{Batch, Datagram, Room};
pub use inlet::Inlet;
pub use interface::Place;
pub use listener::{Connections, Verdict};
pub use outlet::Outlet;
pub use receive::{Receiver, enlarge};
pub use status::Status;
