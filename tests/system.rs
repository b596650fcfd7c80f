//! Whole-system tests, through public edges only: datagrams, HTTP, the policies folder, the process.
//!
//! Every test starts what it needs on free ports and waits for changes, never for time to pass.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(missing_docs, reason = "a test's name says what it shows")]

mod support;
mod twins;

mod api;
mod authoring;
mod bad_files;
mod config;
mod config_file;
mod connections;
mod carriers;
mod clocks;
mod corpus;
mod datagrams;
mod deployments;
mod edge;
mod entry;
mod faults;
mod feedback;
mod folder;
mod headers;
mod hostile;
mod labels;
mod leaving;
mod limits;
mod live;
mod logs;
mod metrics;
mod modules;
mod net;
mod operations;
mod process;
mod reach;
mod regressions;
mod relaying;
mod reload;
mod replicas;
mod schedule;
mod settings;
mod signing;
mod shadow;
mod sim;
mod sources;
mod states;
mod strain;
mod trouble;
mod walk;
