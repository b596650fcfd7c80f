//! Settings of policies: what is wrong with them is told before the policy gets them, all at once, and
//! changes nothing; every built-in policy describes its own.

use std::sync::Arc;

use loadline::policy::{
    FormulaGuest, Kind, Limits, Module, PolicyEngine, StrategyGuest, built_in_names,
};
use serde_json::{Value, json};

use crate::process::command;
use crate::support::{Farm, built_in, pool, strategy};

/// Starts a policy with these settings; what it says of them, or why it does not start.
fn start(engine: &PolicyEngine, module: &Module, settings: &Value) -> Result<Value, String> {
    let (name, settings) = (Arc::from("mine"), settings.to_string());
    let schema = match module.kind() {
        Kind::Formula => FormulaGuest::start(engine, &name, module, &settings)
            .map(|guest| guest.description.settings_schema),
        Kind::Strategy => StrategyGuest::start(engine, &name, module, &settings, 1)
            .map(|guest| guest.description.settings_schema),
    };
    let schema = schema.map_err(|error| error.to_string())?;
    Ok(serde_json::from_str(&schema).unwrap())
}

/// Values that a setting may have at its ends, and values that it may not have.
fn ends_and_beyond(schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let (mut ends, mut beyond) = (vec![schema["default"].clone()], vec![json!("x"), Value::Null]);
    for (keyword, step) in [("minimum", -1_i32), ("maximum", 1)] {
        if let Some(end) = schema.get(keyword) {
            ends.push(end.clone());
            beyond.push(match end.as_i64() {
                Some(end) => json!(end + i64::from(step)),
                None => json!(end.as_f64().unwrap() + f64::from(step)),
            });
        }
    }
    match schema["type"].as_str().unwrap() {
        "integer" => beyond.push(json!(1.5)),
        "object" => {
            let inner = &schema["additionalProperties"];
            let table = |value: &Value| json!({ "cpu": value });
            let low = inner.get("minimum").or(inner.get("exclusiveMinimum")).unwrap();
            beyond.push(table(&json!(low.as_f64().unwrap() - 1.0)));
            beyond.push(table(&json!("x")));
            ends.push(table(&json!(1)));
        }
        _ => {}
    }
    (ends, beyond)
}

#[test]
fn every_built_in_takes_what_it_describes_and_nothing_else() {
    let engine = PolicyEngine::new(Limits::default()).unwrap();
    let mut settings = 0;
    for name in built_in_names() {
        let module = Module::from_wasm(&engine, &built_in(name)).unwrap();
        let schema = start(&engine, &module, &json!({})).unwrap();
        let refused = start(&engine, &module, &json!({ "no such setting": 1 })).unwrap_err();
        assert!(refused.contains("no such setting: unknown setting"), "{name}: {refused}");
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            settings += 1;
            assert!(schema["description"].is_string(), "{name} does not describe {key}");
            assert!(schema.get("default").is_some(), "{name} gives no default of {key}");
            let (ends, beyond) = ends_and_beyond(schema);
            for value in ends {
                let started = start(&engine, &module, &json!({ key: value }));
                assert!(started.is_ok(), "{name} {key} = {value}: {started:?}");
            }
            for value in beyond {
                let refused = start(&engine, &module, &json!({ key: value })).unwrap_err();
                let told = refused.starts_with(&format!("mine refuses its settings: {key}"))
                    && refused.contains(" is not ");
                assert!(told, "{name} {key} = {value}: {refused}");
            }
        }
    }
    assert_eq!(settings, 12, "of all built-in policies together");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_mistakes_are_told_and_a_bad_change_keeps_what_serves() {
    let mut config = pool("default", "weighted", "prequal");
    config.strategy_settings = json!({ "sample": 0, "quantile": "x", "sampel": 3 });
    let mut farm = Farm::with_pools(vec![config]).await;
    let all = "prequal refuses its settings: \
               quantile: \"x\" is not a number from 0 to 1 (default 0.84); \
               sampel: unknown setting, did you mean sample?; \
               sample: 0 is not a whole number from 1 to 64 (default 5)";
    let trouble = |farm: &Farm| farm.policy("strategy")["trouble"].as_str().map(str::to_owned);
    assert!(trouble(&farm).unwrap().contains(all), "{:?}", trouble(&farm));
    let policy = farm.get("/v1/policies/prequal");
    let steps = policy["pools"][0]["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["start", "settings"]);
    assert_eq!(steps[1]["failed"], all);

    let swaps = |farm: &Farm| farm.policy("strategy")["swaps"].clone();
    farm.apply(|config| config.pools[0].strategy_settings = json!({ "sample": 3 })).await;
    assert_eq!(trouble(&farm), None);
    let steps = farm.get("/v1/policies/prequal")["pools"][0]["steps"].clone();
    let names: Vec<_> = steps.as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(names, ["start", "settings", "configure", "trial", "swap"]);
    let (serving, before) = (farm.policy("strategy")["serving"].clone(), swaps(&farm));
    farm.apply(|config| config.pools[0].strategy_settings = json!({ "sample": 65 })).await;
    assert!(trouble(&farm).unwrap().contains("sample: 65 is not a whole number from 1 to 64"));
    assert_eq!((farm.policy("strategy")["serving"].clone(), swaps(&farm)), (serving, before));
    farm.stop().await;
}

/// The file has not changed, and what is known of the machines neither.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_settings_alone_starts_the_same_generation_with_them() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.25)]);
    farm.eligible(1).await;
    let (formula, strategy) = (farm.policy("formula"), farm.policy("strategy"));
    for (swaps, weights, load) in [
        (2, json!({ "memory": 1 }), 0.25),
        (3, json!({ "cpu": 1, "memory": 1 }), 0.75),
        (4, json!({ "cpu": 2, "memory": 0 }), 1.0),
    ] {
        let problems = farm.apply(|config| {
            config.pools[0].formula_settings = json!({ "weights": weights });
        });
        assert_eq!(problems.await, [""; 0]);
        assert_eq!(farm.get("/v1/target")["load"], load);
        let now = farm.policy("formula");
        assert_eq!((&now["generation"], &now["trouble"]), (&formula["generation"], &Value::Null));
        assert_eq!(now["swaps"], swaps);
    }
    assert_eq!(farm.policy("strategy")["swaps"], strategy["swaps"]);
    farm.stop().await;
}

/// Schemas are a guest's words: one that is none is a bad answer.
#[test]
fn schema_that_is_none_is_refused() {
    let engine = PolicyEngine::new(Limits::default()).unwrap();
    let schema = "(data (i32.const 64) \"\\20\\00\\00\\00\\00\\00\\00\\00\\20\\00\\00\\00\\00\\00\\00\\00\\e0\\00\\00\\00\\03\\00\\00\\00\")";
    let module = Module::from_wasm(&engine, &strategy(schema)).unwrap();
    let refused = start(&engine, &module, &json!({})).unwrap_err();
    assert!(
        refused.contains("describe answered nonsense: its settings schema: not JSON"),
        "{refused}"
    );
}

#[test]
fn config_check_asks_the_policies() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(folder.path().join("loadline.toml"), text).unwrap();
        let output = command(&folder).args(["config", "check"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let fuzzy = |settings: &str| {
        format!(
            "[host]\n[[pool]]\nname = \"web\"\nstrategy = \"fuzzy\"\nstrategy_settings = {settings}"
        )
    };
    assert_eq!(check(&fuzzy("{ threshold = 2 }")).0, Some(0));
    let (code, said) = check(&fuzzy("{ treshold = 2 }"));
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("pool \"web\": strategy_settings: fuzzy refuses its settings"), "{said}");
    assert!(said.contains("treshold: unknown setting, did you mean threshold?"), "{said}");
    // With what is wrong with the secrets, of which none hides another.
    let secrets = "[host]\nadmin_token_file = \"no-token\"\n[reports]\nkeys = [{ id = 1, secret_file = \"no-key\" }]\n";
    let (code, said) = check(&fuzzy("{ treshold = 2 }").replace("[host]\n", secrets));
    assert_eq!(code, Some(64), "{said}");
    for words in ["reports.keys[0]: ", "host.admin_token_file: ", "treshold: unknown setting"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // A file overrides the built-in, here too; and who is not there may come.
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/fuzzy.wasm"), built_in("first-available")).unwrap();
    let (_, said) = check(&fuzzy("{ threshold = 2 }"));
    assert!(said.contains("threshold: unknown setting (known here: spill)"), "{said}");
    let (code, said) = check("[host]\n[[pool]]\nname = \"web\"\nformula = \"later\"");
    assert_eq!(code, Some(0));
    assert!(said.contains("pool \"web\": there is no formula later in policies yet"), "{said}");
}
