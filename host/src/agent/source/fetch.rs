//! One page over HTTP: a URL in, the answer's head and a reader of its body out.
//!
//! Every fetch has a time limit (connecting, waiting and reading together), follows few redirects
//! and takes no proxy from the environment. Blocking: called on a thread for it.

use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

/// Redirects followed at most: a metrics page may have moved, not wander.
const REDIRECTS_MAX: u32 = 3;

/// Fetches one page again and again.
#[derive(Debug)]
pub(super) struct Fetch {
    agent: Agent,
    url: String,
    timeout: Duration,
}

impl Fetch {
    pub(super) fn new(url: &str, timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(REDIRECTS_MAX)
            .proxy(None)
            .user_agent(concat!("loadline/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: Agent::new_with_config(config), url: url.to_owned(), timeout }
    }

    /// The page.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn get(&self, headers: &[(&str, &str)]) -> Result<Response<Body>, String> {
        let mut request = self.agent.get(&self.url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.call().map_err(|error| self.in_words(&error))
    }

    /// A failure, with the time limit where that was the cause.
    fn in_words(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("no answer within {:?}", self.timeout),
            ureq::Error::StatusCode(code) => format!("answered with status {code}"),
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        }
    }
}
