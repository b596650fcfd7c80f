//! Messages to the operator: capped, rate-limited and escaped by the host. Natively they go to
//! standard error, for tests.

/// How much the operator should care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For the policy's author.
    Debug,
    /// Worth knowing.
    Info,
    /// Degraded.
    Warn,
    /// Somebody must act.
    Error,
}

/// Writes one message.
pub fn write(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::guest::log(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// Writes at debug level.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Writes at info level.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Writes at warn level.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Writes at error level.
pub fn error(message: &str) {
    write(Level::Error, message);
}
