//! `loadline pick`: one question to the first host that answers.

use std::time::Duration;

/// The question.
#[derive(clap::Args)]
pub(super) struct Question {
    /// Which pool
    #[arg(long, default_value = "default")]
    pool: String,
    /// What the client is known by, for strategies that keep a client on its target
    #[arg(long)]
    key: Option<String>,
    /// How many ranked targets (with --json)
    #[arg(long, default_value_t = 1)]
    n: u32,
    /// A machine that is not wanted; may be repeated
    #[arg(long, value_name = "MACHINE")]
    exclude: Vec<String>,
    /// A host to ask; may be repeated, the first one that answers counts
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:14000",
        env = "LOADLINE_HOSTS",
        value_delimiter = ','
    )]
    host: Vec<String>,
    /// Print this address when no host gives one
    #[arg(long, value_name = "ADDRESS")]
    or: Option<String>,
    /// Milliseconds to wait for each host
    #[arg(long, default_value_t = 1_000)]
    timeout_ms: u64,
    /// Print the whole answer
    #[arg(long)]
    json: bool,
}

/// The address, or the whole answer; or what every host said.
pub(super) fn ask(question: &Question) -> Result<String, String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_millis(question.timeout_ms)))
        .http_status_as_error(false)
        .build();
    let agent = ureq::Agent::new_with_config(config);
    let mut complaints = Vec::new();
    for host in &question.host {
        match ask_one(&agent, host, question) {
            Ok(answer) => return Ok(answer.trim_end().to_owned()),
            Err(complaint) => complaints.push(format!("{host}: {complaint}")),
        }
    }
    question.or.clone().ok_or_else(|| complaints.join("\n"))
}

fn ask_one(agent: &ureq::Agent, host: &str, question: &Question) -> Result<String, String> {
    let url = format!("{}/v1/target", host.trim_end_matches('/'));
    let mut request =
        agent.get(url).query("pool", &question.pool).query("n", question.n.to_string());
    if let Some(key) = &question.key {
        request = request.query("key", key);
    }
    if !question.exclude.is_empty() {
        request = request.query("exclude", question.exclude.join(","));
    }
    let accept = if question.json { "application/json" } else { "text/plain" };
    let mut answer = request.header("accept", accept).call().map_err(|error| error.to_string())?;
    let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
    if answer.status().is_success() {
        return Ok(text);
    }
    let error = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
    let field = |name| error["error"][name].as_str();
    let status = answer.status();
    let message = field("message").map_or_else(|| status.to_string(), str::to_owned);
    Err(field("hint").map_or_else(|| message.clone(), |hint| format!("{message}; {hint}")))
}
