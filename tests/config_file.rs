//! The configuration file under a running process: however it is changed, each change counts once, what
//! is wrong changes nothing and is told, and requests are answered throughout.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::{Process, command};
use crate::support::get;

/// A host whose configuration file is changed by a test.
struct Changing {
    process: Process,
    url: String,
    file: PathBuf,
    folder: tempfile::TempDir,
}

impl Changing {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::start(&folder, &config(3), &["--config", "loadline.toml"]);
        let file = folder.path().join("loadline.toml");
        Self::of(process, file, folder)
    }

    fn of(mut process: Process, file: PathBuf, folder: tempfile::TempDir) -> Self {
        let line = process.until("try ");
        let url = line.split_whitespace().last().unwrap().replace("/v1/target", "");
        Self { process, url, file, folder }
    }

    fn state(&self) -> Value {
        let (status, body) = get(&format!("{}/v1/config", self.url), "application/json");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until the changed `miss_limit` counts.
    fn until_limit(&mut self, limit: u32) {
        let line = self.process.until("host.miss_limit: ");
        assert!(line.contains(&format!("-> {limit}")), "{line}");
    }

    /// Waits for this complaint and checks that the API knows it, too.
    fn until_refused(&mut self, words: &str) -> Value {
        self.process.until(words);
        let state = self.state();
        assert_eq!(state["state"], "refused", "{state}");
        state
    }

    /// Writes as most editors do.
    fn save(&self, text: &str) {
        let temporary = self.file.with_extension("toml~");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, &self.file).unwrap();
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn end(self) {
        assert_eq!(self.process.end("-TERM"), Some(0));
    }
}

fn config(miss_limit: u32) -> String {
    format!(
        "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n[host]\n\
         listen = \"127.0.0.1:0\"\nmiss_limit = {miss_limit}\n"
    )
}

#[test]
fn each_save_counts_once_however_an_editor_writes() {
    let mut host = Changing::start();
    for limit in [4, 5, 6] {
        host.save(&config(limit)); // a new file under the old name
        host.until_limit(limit);
    }
    for limit in [7, 8] {
        fs::write(&host.file, config(limit)).unwrap(); // in place
        host.until_limit(limit);
    }
    let away = host.folder.path().join("away");
    fs::rename(&host.file, &away).unwrap();
    host.until_refused("loadline.toml: cannot be read");
    fs::write(&away, config(9)).unwrap();
    fs::rename(&away, &host.file).unwrap();
    host.until_limit(9);
    let state = host.state();
    assert_eq!((&state["applied"], &state["refused"]), (&6.into(), &1.into()), "{state}");
    assert_eq!((&state["state"], &state["problems"]), (&"in_force".into(), &Value::Array(vec![])));
    assert_eq!(state["last_changes"][0]["key"], "host.miss_limit", "{state}");
    host.end();
}

#[test]
fn reading_and_touching_change_nothing() {
    let mut host = Changing::start();
    for _ in 0..5 {
        fs::read(&host.file).unwrap();
        fs::read_dir(host.folder.path()).unwrap().count();
        let file = fs::File::options().append(true).open(&host.file).unwrap();
        file.set_modified(std::time::SystemTime::now()).unwrap();
        host.save(&config(3)); // another file with the same content
    }
    host.save(&config(4));
    host.until_limit(4);
    let state = host.state();
    assert_eq!((&state["applied"], &state["refused"]), (&1.into(), &0.into()), "{state}");
    host.end();
}

/// A ConfigMap: dated folders, a link to the current one, and the file's link through it.
#[test]
fn link_that_is_swapped_counts_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("volume");
    let dated = |number: u32| volume.join(format!("..{number}"));
    let publish = |limit: u32| {
        fs::create_dir_all(dated(limit)).unwrap();
        fs::write(dated(limit).join("loadline.toml"), config(limit)).unwrap();
        symlink(format!("..{limit}"), volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    publish(3);
    let file = volume.join("loadline.toml");
    symlink("..data/loadline.toml", &file).unwrap();
    let process = Process::start(&folder, "", &["--config", "volume/loadline.toml"]);
    let mut host = Changing::of(process, file, folder);
    for limit in [4, 5, 6] {
        publish(limit);
        host.until_limit(limit);
        fs::remove_dir_all(dated(limit - 1)).unwrap();
    }
    let state = host.state();
    assert_eq!((&state["applied"], &state["refused"]), (&3.into(), &0.into()), "{state}");
    host.end();
}

#[test]
fn file_that_is_being_written_is_waited_for() {
    let mut host = Changing::start();
    let text = config(4).replace("[host]", "# a comment\n[host]");
    for (limit, pauses_ms) in [(4, [0, 0]), (5, [250, 50]), (6, [500, 250])] {
        // Emptied, then written in two pieces by a slow program; the first would be a whole file.
        let text = text.replace("= 4", &format!("= {limit}"));
        let (first, second) = text.split_at(text.find("miss_limit").unwrap());
        let mut script = String::from("exec 3>loadline.toml");
        for (piece, ms) in [first, second].iter().zip(pauses_ms) {
            script.push_str(&format!(
                "; sleep {}.{:03}; printf '%s' '{piece}' >&3",
                ms / 1_000,
                ms % 1_000
            ));
        }
        let mut writer = Command::new("sh");
        let status = writer.arg("-c").arg(script).current_dir(host.folder.path()).status();
        assert!(status.unwrap().success());
        host.until_limit(limit);
    }
    let state = host.state();
    assert_eq!((&state["applied"], &state["refused"]), (&3.into(), &0.into()), "{state}");
    host.end();
}

#[test]
fn what_is_wrong_changes_nothing_and_is_told_with_its_line() {
    let mut host = Changing::start();
    let good = config(3);
    let cases = [
        ("[host]\nlisten = ".to_owned(), "loadline.toml:2: not TOML: string values must be quoted"),
        (good.replace("= 3", "= \"three\""), "loadline.toml:6: host.miss_limit: a string is"),
        (good.replace("= 3", "= 0"), "loadline.toml:6: host.miss_limit: 0 is not a whole number"),
        (
            good.replace("miss_limit", "mis_limit"),
            "loadline.toml:6: host.mis_limit: unknown key, did",
        ),
        (good.replace("76:0", "76:-1"), "loadline.toml:2: reports.group: "),
        ("\n".to_owned(), "loadline.toml: is empty"),
        ("[reports]".to_owned(), "nothing to do"),
        (format!("{good}[agent]\ninterval = \"0s\"\n"), "loadline.toml:8: agent.interval: \"0s\""),
    ];
    for (number, (text, words)) in (1..).zip(&cases) {
        host.save(text);
        let state = host.until_refused(words);
        assert_eq!(state["refused"], number, "{state}");
        assert!(!state["problems"][0]["what"].as_str().unwrap().is_empty(), "{state}");
    }
    fs::remove_file(&host.file).unwrap();
    host.until_refused("loadline.toml: cannot be read");
    fs::create_dir(&host.file).unwrap();
    host.until_refused("loadline.toml: not a regular file");
    let metrics = get(&format!("{}/metrics", host.url), "").1;
    assert!(metrics.contains("loadline_config_loads_total{result=\"refused\"} 10"), "{metrics}");
    assert!(metrics.contains("loadline_config_problems 1"), "{metrics}");
    fs::remove_dir(&host.file).unwrap();
    host.save(&config(3));
    host.process.until("the configuration is in force");
    let state = host.state();
    assert_eq!((&state["applied"], &state["state"]), (&0.into(), &"in_force".into()), "{state}");
    host.end();
}

#[test]
fn all_problems_of_a_file_come_at_once() {
    let mut host = Changing::start();
    host.save("[host]\nmiss_limit = -1\nlisten = 5\n[agent]\nweight = 0\n");
    host.process.until("agent.weight");
    let state = host.state();
    let problems: Vec<_> = state["problems"].as_array().unwrap().iter().collect();
    let lines: Vec<_> = problems.iter().map(|problem| problem["line"].as_u64()).collect();
    assert_eq!(lines, [Some(5), Some(3), Some(2)], "{state}");
    host.end();
}

#[test]
fn hang_up_looks_at_once_and_a_second_one_is_no_harm() {
    let mut host = Changing::start();
    host.save("[host]\nmiss_limit = 0");
    host.process.until("host.miss_limit: 0 is not");
    for _ in 0..2 {
        host.signal("-HUP");
        host.process.until("host.miss_limit: 0 is not"); // asked: said again
    }
    host.save(&config(4));
    host.signal("-HUP");
    host.signal("-HUP");
    host.until_limit(4);
    assert_eq!(host.state()["applied"], 1);
    host.end();
}

#[test]
fn secret_that_is_rotated_takes_effect() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "the first secret").unwrap();
    let text =
        config(3).replace("[reports]", "[reports]\nkeys = [{ id = 1, secret_file = \"secret\" }]");
    let process = Process::start(&folder, &text, &[]);
    let mut host = Changing::of(process, folder.path().join("loadline.toml"), folder);
    fs::write(&secret, "short").unwrap();
    host.process
        .until("reports.keys[0]: the secret of secret_file secret is shorter than 16 bytes");
    fs::write(&secret, "the second secret").unwrap();
    host.process.until("secrets changed");
    assert_eq!((&host.state()["state"], &host.state()["applied"]), (&"in_force".into(), &1.into()));
    assert!(!host.state().to_string().contains("second"));
    host.end();
}

#[test]
fn busy_port_is_told_and_tried_again() {
    let mut host = Changing::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap().to_string();
    host.save(&config(4).replace("127.0.0.1:0", &busy));
    host.until_limit(4); // the rest of the change counts
    host.process.until("host.listen: cannot listen on");
    assert_eq!(host.state()["state"], "partly");
    drop(taken);
    host.process.until("the configuration is in force");
    host.url = format!("http://{busy}");
    assert_eq!(host.state()["state"], "in_force");
    host.end();
}

#[test]
fn file_that_comes_later_and_goes_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = command(&folder);
    let usual = folder.path().join("loadline.toml");
    host.arg("host").env("LOADLINE_HOST__LISTEN", "127.0.0.1:0");
    host.env("LOADLINE_REPORTS__GROUP", "239.255.76.76:0");
    let process = Process::of(host);
    let mut host = Changing::of(process, usual, folder);
    assert_eq!(host.state()["file"], Value::Null);
    host.save("[host]\nmiss_limit = 7");
    host.until_limit(7);
    assert_eq!(host.state()["file"], "loadline.toml");
    // Gone is no wish for the defaults: keys and pools would go with it.
    fs::remove_file(&host.file).unwrap();
    host.until_refused("loadline.toml: cannot be read");
    host.save("[host]\nmiss_limit = 8");
    host.until_limit(8);
    host.end();
}

#[test]
fn secret_that_cannot_be_used_keeps_the_old_file_in_force_until_it_can() {
    let mut host = Changing::start();
    let secret = host.folder.path().join("secret");
    let keys = format!("[reports]\nkeys = [{{ id = 1, secret_file = {secret:?} }}]\n");
    host.save(&config(4).replace("[reports]\n", &keys));
    let state = host.until_refused("cannot read secret_file");
    assert_eq!((&state["applied"], &state["refused"]), (&0.into(), &1.into()), "{state}");
    fs::write(&secret, "0123456789abcdef").unwrap();
    host.until_limit(4);
    assert_eq!(host.state()["state"], "in_force");
    host.end();
}

/// What `config check` and `config print` say with these variables.
fn with_variables(command_of: &str, file: &str, variables: &[(&str, &str)]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("loadline.toml"), file).unwrap();
    let mut asked = command(&folder);
    let output = asked.args(["config", command_of]).envs(variables.iter().copied());
    let output = output.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), said)
}

#[test]
fn variables_win_over_the_file_and_are_checked_like_it() {
    let file = "[agent]\nmachine = \"a\"\n[host]\n";
    let good = [
        ("LOADLINE_AGENT__MACHINE", "5"),
        ("LOADLINE_AGENT__WEIGHT", "2.5"),
        ("LOADLINE_AGENT__INTERVAL", "5s"),
        ("LOADLINE_REPORTS__INTERFACES", "[\"eth0\"]"),
        ("LOADLINE_HOST__INSECURE", "true"),
        ("LOADLINE_HOST__LISTEN", "0.0.0.0:80"),
        // What a container platform sets for a service named loadline-host.
        ("LOADLINE_HOST_PORT", "tcp://10.0.0.1:14000"),
    ];
    let (code, said) = with_variables("print", file, &good);
    assert_eq!(code, 0, "{said}");
    for line in [
        "# from loadline.toml",
        "# agent.machine from LOADLINE_AGENT__MACHINE",
        "machine = \"5\"",
        "weight = 2.5",
        "interval = \"5s\"",
        "interfaces = [\"eth0\"]",
        "listen = \"0.0.0.0:80\"",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    let bad = [
        ("LOADLINE_AGENT__INTERVAL", "soon"),
        ("LOADLINE_AGENT__WIEGHT", "2"),
        ("LOADLINE_HOSTS__LISTEN", "127.0.0.1:1"),
        ("LOADLINE_HOST__MISS_LIMIT", "many"),
        ("LOADLINE_HOST__INSECURE", "perhaps"),
    ];
    let (code, said) = with_variables("check", file, &bad);
    assert_eq!(code, 64, "{said}");
    for words in [
        "LOADLINE_AGENT__INTERVAL: agent.interval: \"soon\" is not a duration",
        "LOADLINE_AGENT__WIEGHT: agent.wieght: unknown key, did you mean weight?",
        "LOADLINE_HOSTS__LISTEN: hosts.listen: there is no table [hosts]",
        "LOADLINE_HOST__MISS_LIMIT: host.miss_limit: a string is not a whole number",
        "LOADLINE_HOST__INSECURE: host.insecure: a string where true or false belongs",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn variables_give_no_role() {
    let (code, said) = with_variables("print", "[host]", &[("LOADLINE_AGENT__MACHINE", "a")]);
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("[agent]"), "{said}");
}

/// Whether `unshare` can make a user's name space here.
fn can_limit() -> bool {
    let tried = Command::new("unshare").args(["-Ur", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Watches of the system used up: the file is looked at every two seconds.
#[test]
fn without_a_watch_the_limit_is_named_and_changes_are_seen_by_looking() {
    if !can_limit() {
        eprintln!("skipped: no user name spaces here");
        return;
    }
    for (limit, name) in
        [("max_inotify_instances", "instances"), ("max_inotify_watches", "watches")]
    {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("loadline.toml"), config(3)).unwrap();
        let mut limited = Command::new("unshare");
        limited.current_dir(folder.path()).args(["-Ur", "sh", "-c"]);
        limited.arg(format!("echo 0 > /proc/sys/user/{limit} && exec \"$0\""));
        limited.arg(crate::support::program());
        let mut process = Process::of(limited);
        let mut seen = Vec::new();
        let host = process.until_with("try ", &mut seen);
        let url = host.split_whitespace().last().unwrap().replace("/v1/target", "");
        let words = format!("fs.inotify.max_user_{name}");
        if !seen.iter().any(|line| line.contains(&words)) {
            process.until(&words);
        }
        let file = folder.path().join("loadline.toml");
        let mut host = Changing { process, url, file, folder };
        host.save(&config(4));
        host.until_limit(4);
        host.end();
    }
}

#[test]
fn an_open_file_system_of_links_is_followed() {
    // The file is a link to a file of another folder, which is changed there.
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::write(real.join("it"), config(3)).unwrap();
    symlink("real/it", folder.path().join("linked.toml")).unwrap();
    let process = Process::start(&folder, "", &["-c", "linked.toml"]);
    let mut host = Changing::of(process, real.join("it"), folder);
    append(&host.file, "# nothing new\n");
    append(&host.file, "decisions = 16\n");
    host.process.until("host.decisions: 1024 -> 16");
    host.end();
}

fn append(file: &Path, text: &str) {
    fs::File::options().append(true).open(file).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn last_key_that_goes_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "0123456789abcdef").unwrap();
    let text = |limit: u32, keys: &str| {
        format!(
            "[reports]\ngroup = \"239.255.76.76:0\"\nkeys = [{keys}]\n\
             [host]\nlisten = \"127.0.0.1:0\"\nmiss_limit = {limit}\n"
        )
    };
    let signed = text(3, "{ id = 1, secret_file = \"secret\" }");
    let process = Process::start(&folder, &signed, &["--config", "loadline.toml"]);
    let file = folder.path().join("loadline.toml");
    let mut changing = Changing::of(process, file, folder);
    changing.save(&text(3, ""));
    changing.process.until("reports are not signed");
    changing.save(&text(4, ""));
    let mut seen = Vec::new();
    changing.process.until_with("host.miss_limit: 3 -> 4", &mut seen);
    assert!(!seen.iter().any(|line| line.contains("not signed")), "{seen:#?}");
}
