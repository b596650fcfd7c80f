//! An operator's calls, with the admin token.

use std::fs;
use std::path::Path;

use loadline::config::PoolConfig;
use serde_json::Value;

use super::Farm;

pub(crate) const TOKEN: &str = "a token that nobody guesses";

/// A call with or without a token; its status and its JSON.
pub(crate) fn call(
    farm: &Farm,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &[u8],
) -> (u16, Value) {
    let url = farm.url(path);
    let mut request = ureq::http::Request::builder().method(method).uri(&url);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let config = ureq::Agent::config_builder().http_status_as_error(false).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut answer = agent.run(request.body(body).unwrap()).unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default())
}

#[track_caller]
pub(crate) fn good(farm: &Farm, method: &str, path: &str, body: &[u8]) -> Value {
    let (status, json) = call(farm, method, path, Some(TOKEN), body);
    assert_eq!(status, 200, "{method} {path}: {json}");
    json
}

#[track_caller]
pub(crate) fn bad(farm: &Farm, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let (status, json) = call(farm, method, path, Some(TOKEN), body);
    (status, json["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// One pool with the strategy `mine`, an admin token, and two machines; `b` is the lighter one.
pub(crate) async fn farm(pools: Vec<PoolConfig>, files: &[(&str, &[u8])]) -> Farm {
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let mut farm = Farm::with_host(pools, files, |host| host.admin_token_file = token).await;
    farm.keep(secrets); // a change of the configuration reads it again
    farm.report(&["a"], &[("cpu", 0.9), ("memory", 0.9)]);
    farm.report(&["b"], &[("cpu", 0.1), ("memory", 0.1)]);
    farm.eligible(2).await;
    farm
}

/// Names of the files in a folder, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
