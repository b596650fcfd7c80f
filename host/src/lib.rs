//! Loadline: which machine should take this work?
//!
//! Modules stand in the order in which data flows, and each uses only what stands before it: a
//! [`report`] is made by the [`agent`], travels over a [`transport`], lands in the [`fleet`], is
//! scored by a [`policy`] (the formula) and offered to a [`pick`] (by the strategy), which the
//! [`api`] serves; [`run`] starts all of it. [`sim`] compares strategies in virtual time. [`config`],
//! [`telemetry`], [`mod@watch`], [`listen`], `serve`, [`clock`] and [`calendar`] stand beside, [`cli`]
//! in front.
//!
//! The walk of a request is [`pick::pick`], the walk of a report [`pick::intake::Intake::run`]. The
//! features `agent` and `host` leave out what the other role needs.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "an application's documentation is for its readers, built with private items"
)]

#[cfg(feature = "host")]
mod background;
#[cfg(feature = "host")]
pub mod calendar;
pub mod clock;
pub mod config;
#[cfg(feature = "host")]
pub mod quantiles;
pub mod telemetry;
pub mod watch;
pub mod listen;
#[cfg(any(feature = "agent", feature = "host"))]
pub mod serve;

pub mod report;
pub mod agent;
pub mod transport;
pub mod relay;
#[cfg(feature = "host")]
pub mod fleet;
#[cfg(feature = "host")]
pub mod policy;
#[cfg(feature = "host")]
pub mod sim;
#[cfg(feature = "host")]
pub mod pick;
#[cfg(feature = "host")]
pub mod api;
pub mod run;

pub mod cli;
