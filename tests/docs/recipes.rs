//! Files of other programs in the documents: compose, Nomad, systemd, keepalived, Argo CD and Flux.
//! None of these programs runs here. Held are the configurations of Pointsman inside, the
//! references within a file, and every number that must be larger than one of ours.
//!
//! `tests/e2e/compose.rs` starts what the compose file starts, `tests/e2e/cutover.rs` plays the
//! cut-over.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::blocks::{Block, blocks, pointsman};
use crate::read;
use crate::yaml::{document, documents, text};

const COMPOSE: &str = "deploy/compose/compose.yaml";
const CUTOVER: &str = "deploy/systemd/cutover.md";
const KEEPALIVED: &str = "deploy/keepalived/README.md";

/// The blocks of a page in one language.
fn of_page(page: &str, info: &str) -> Vec<String> {
    let of_page = |block: &Block| block.document == page && block.info == info;
    let found: Vec<String> = blocks().into_iter().filter(of_page).map(|block| block.text).collect();
    assert!(!found.is_empty(), "{page} has no block of {info}");
    found
}

#[track_caller]
fn is_accepted(configuration: &str) {
    let env = [("REDIS_PASSWORD".to_owned(), "secret".to_owned())];
    let output = pointsman(&["check", "--config", "-"], &env, configuration);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{configuration}");
}

/// How long a process with the default settings may take to stop.
fn longest_stop() -> Duration {
    let output = pointsman(&["config", "--sentinel", "localhost:26379"], &[], "");
    let defaults = String::from_utf8(output.stdout).expect("UTF-8");
    let defaults: toml::Table = defaults.parse().expect("TOML");
    let of = |key: &str| seconds(defaults["shutdown"][key].as_str().expect("a duration"));
    of("accept_max") + of("drain_timeout")
}

/// `40s` and the like.
fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').and_then(|number| number.parse().ok());
    Duration::from_secs(number.unwrap_or_else(|| panic!("{text:?} is not a number of seconds")))
}

#[test]
fn compose_file_is_consistent() {
    let file = document(&read(COMPOSE));
    is_accepted(text(&file["configs"]["pointsman"]["content"]));
    let services = file["services"].as_object().expect("services");
    let mut addresses = BTreeSet::new();
    let mut used = BTreeSet::new();
    for (name, service) in services {
        let address = text(&service["networks"]["redis"]["ipv4_address"]);
        assert!(address.starts_with("172.30.0.") && addresses.insert(address), "{name}: {address}");
        for config in service["configs"].as_array().expect("configs") {
            used.insert(text(&config["source"]));
        }
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let volume = text(volume).split(':').next().unwrap_or_default();
            assert_eq!(volume, name, "each node has a volume of its own");
            assert!(file["volumes"].get(volume).is_some(), "{volume} is not declared");
        }
        let command = service["command"].to_string();
        let announces = command.contains(&format!("announce-ip {address}"));
        assert!(announces || name == "pointsman", "{name} announces another address: {command}");
    }
    let defined: BTreeSet<&str> =
        file["configs"].as_object().expect("configs").keys().map(String::as_str).collect();
    assert_eq!(used, defined);
    let sentinels = services.iter().filter(|(name, _)| name.starts_with("sentinel-"));
    let configuration = text(&file["configs"]["pointsman"]["content"]);
    for (name, sentinel) in sentinels {
        let address = text(&sentinel["networks"]["redis"]["ipv4_address"]);
        assert!(configuration.contains(&format!("\"{address}:26379\"")), "{name}");
    }
    assert!(seconds(text(&services["pointsman"]["stop_grace_period"])) > longest_stop());
}

/// The texts between `<<-EOF` and `EOF`, without their common indentation.
fn heredocs(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.ends_with("= <<-EOF") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "EOF").collect();
            let indent = |line: &&str| line.len() - line.trim_start().len();
            let margin = body.iter().filter(|line| !line.is_empty()).map(indent).min().unwrap_or(0);
            found.push(
                body.iter().map(|line| format!("{}\n", line.get(margin..).unwrap_or(""))).collect(),
            );
        }
    }
    found
}

/// The value of a key, without quotes.
fn value_of<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text.lines().filter_map(|line| line.trim().split_once('='));
    lines
        .filter(|(found, _)| found.trim() == key)
        .map(|(_, value)| value.trim().trim_matches('"'))
        .collect()
}

fn has_balanced_braces(text: &str) -> bool {
    let mut depth = 0_i32;
    for c in text.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth < 0 {
            return false;
        }
    }
    depth == 0
}

#[test]
fn nomad_job_embeds_a_sound_configuration() {
    let job = of_page("deploy/nomad/README.md", "hcl").concat();
    assert!(has_balanced_braces(&job));
    let texts = heredocs(&job);
    assert_eq!(texts.len(), 2);
    is_accepted(&texts[0]);
    let configuration: toml::Table = texts[0].parse().expect("TOML");
    let variable = text_of(&configuration, "password_env");
    assert!(texts[1].contains(&format!("}}}}{variable}={{{{")), "{}", texts[1]);
    assert!(seconds(value_of(&job, "kill_timeout")[0]) > longest_stop());
    assert_eq!(value_of(&job, "path"), ["/ready"]);
    let ports = value_of(&job, "static");
    assert!(ports.iter().all(|port| texts[0].contains(&format!("0.0.0.0:{port}\""))), "{ports:?}");
    let args: Vec<String> = serde_json::from_str(value_of(&job, "args")[0]).expect("a list");
    let path = value_of(&job, "destination")[0];
    assert_eq!(args, ["run", "--config", &format!("/{path}")]);
}

fn text_of(configuration: &toml::Table, key: &str) -> String {
    let service = &configuration["service"].as_array().expect("services")[0];
    service["auth"][key].as_str().expect("a text").to_owned()
}

/// The drop-in names the service of the page's configuration and the address that it replaces.
#[test]
fn cutover_drop_in_fits_the_configuration() {
    let drop_in = of_page(CUTOVER, "ini").concat();
    let configuration: toml::Table = of_page(CUTOVER, "toml")[0].parse().expect("TOML");
    let service = &configuration["service"].as_array().expect("services")[0];
    assert_eq!(
        value_of(&drop_in, "FileDescriptorName"),
        [service["name"].as_str().expect("a name")]
    );
    let listen = service["listen"][0].as_str().expect("an address");
    assert_eq!(
        value_of(&drop_in, "ListenStream"),
        ["", listen],
        "the unit's own address is reset first"
    );
    assert_eq!(value_of(&drop_in, "ReusePort"), ["yes"]);
    let tls = read("deploy/systemd/pointsman-tls.socket");
    assert_eq!(value_of(&tls, "Service"), ["pointsman.service"]);
    assert_eq!(value_of(&tls, "FileDescriptorName"), ["mymaster/tls"]);
    let unit = read("deploy/systemd/pointsman.socket");
    for key in ["ListenStream", "FileDescriptorName"] {
        assert!(!value_of(&unit, key).is_empty(), "the unit has no {key} to replace");
    }
}

#[test]
fn keepalived_file_asks_for_readiness() {
    let file = of_page(KEEPALIVED, "text").concat();
    assert!(has_balanced_braces(&file));
    let script = file.lines().find_map(|line| line.trim().strip_prefix("script "));
    assert!(script.is_some_and(|script| script.ends_with(":8888/ready\"")), "{script:?}");
    let tracked =
        file.split("track_script {").nth(1).and_then(|rest| rest.split_whitespace().next());
    let defined = file.split("vrrp_script ").nth(1).and_then(|rest| rest.split_whitespace().next());
    assert_eq!(tracked, defined);
    assert!(of_page(KEEPALIVED, "toml")[0].contains("0.0.0.0:8888"));
}

/// Keys of the chart's values that a recipe sets exist, at the first two levels.
fn unknown_values(recipe: &Value, chart: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (key, value) in recipe.as_object().expect("values") {
        let Some(known) = chart.get(key) else {
            unknown.push(key.clone());
            continue;
        };
        if let (Some(inner), Some(known)) = (value.as_object(), known.as_object()) {
            unknown.extend(
                inner.keys().filter(|it| !known.contains_key(*it)).map(|it| format!("{key}.{it}")),
            );
        }
    }
    unknown
}

#[test]
fn gitops_recipes_set_values_that_the_chart_has() {
    let chart = document(&read("deploy/helm/pointsman/values.yaml"));
    let mut found = 0;
    for recipe in of_page("deploy/helm/gitops.md", "yaml").iter().flat_map(|block| documents(block))
    {
        let application = &recipe["spec"]["source"]["helm"]["valuesObject"];
        for values in [application, &recipe["spec"]["values"], &recipe["pointsman"]] {
            if values.is_object() {
                found += 1;
                assert_eq!(unknown_values(values, &chart), Vec::<String>::new());
            }
        }
        for dependency in recipe["dependencies"].as_array().into_iter().flatten() {
            assert_eq!(text(&dependency["name"]), "pointsman");
        }
    }
    assert_eq!(found, 3);
    let wrong = serde_json::json!({"image": {"repo": "x"}, "mastres": []});
    assert_eq!(unknown_values(&wrong, &chart), ["image.repo", "mastres"]);
}

/// The page's formula and its first table, against the program.
#[test]
fn sizing_table_fits_the_memory_formula() {
    let page = read("docs/sizing.md");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
        let unit = |text: &str| {
            let (number, unit) = text.split_once(' ')?;
            let factor = if unit == "GiB" { 1024 } else { 1 };
            Some(number.parse::<u64>().ok()? * factor)
        };
        Some((number(cells.first()?)?, unit(cells.get(2)?)?))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 4, "{rows:?}");
    let mib = 1024 * 1024;
    for (clients, limit) in rows {
        let carried = (limit * mib / 4 * 3 - 24 * mib) / pointsman::reference::SESSION_BYTES;
        assert!(carried >= clients, "{limit} MiB carry {carried}, not {clients}");
    }
}

#[test]
fn heredocs_lose_their_margin() {
    assert_eq!(heredocs("a = <<-EOF\n    b\n      c\n  EOF\nd\n"), ["b\n  c\n"]);
    assert!(
        has_balanced_braces("a {\n}\n") && !has_balanced_braces("}{") && !has_balanced_braces("{")
    );
    assert_eq!(value_of("a = \"1\"\n b=2\n", "b"), ["2"]);
}
