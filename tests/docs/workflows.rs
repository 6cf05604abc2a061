//! The workflows, as far as they can be held without running them: what they call exists, what they
//! upload is what `dist` makes, and no job may do more than it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::blocks::variants;
use crate::yaml::{document, text};
use crate::{fail_on, read, root};

const RELEASE: &str = ".github/workflows/release.yml";
const WORKFLOWS: [&str; 2] = [".github/workflows/ci.yml", RELEASE];
const DIST: &str = "crates/xtask/src/dist/mod.rs";

/// What each job of a release may do besides reading the repository.
const MAY: &[(&str, &[&str])] = &[
    ("version", &[]),
    ("dist", &["attestations", "id-token"]),
    ("image", &["attestations", "id-token", "packages"]),
    ("chart", &["attestations", "id-token", "packages"]),
    ("release", &["contents", "id-token"]),
];

/// Files that the release names, with the place of the version and the target marked, and the
/// expression of `dist` that makes the name.
const MADE: &[(&str, &str)] = &[
    ("dist/pointsman-{}-amd64-image.tar", "\"pointsman-{}-{}-image.tar\""),
    ("dist/pointsman-{}-arm64-image.tar", "\"pointsman-{}-{}-image.tar\""),
    ("dist/pointsman-chart-{}.tgz", "\"pointsman-chart-{}.tgz\""),
    ("dist/pointsman-{}-{}.cdx.json", "\"{}.cdx.json\", dist.name()"),
];

fn jobs(workflow: &str) -> BTreeMap<String, Value> {
    let value = document(&read(workflow));
    let jobs = value["jobs"].as_object().expect("jobs").clone();
    jobs.into_iter().collect()
}

fn steps(job: &Value) -> Vec<Value> {
    job["steps"].as_array().cloned().unwrap_or_default()
}

/// Every step of every workflow, with the name of its workflow and job.
fn all_steps() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for workflow in WORKFLOWS {
        for (name, job) in jobs(workflow) {
            assert!(!steps(&job).is_empty(), "{workflow}: {name} has no steps");
            found.extend(steps(&job).into_iter().map(|step| (format!("{workflow}: {name}"), step)));
        }
    }
    found
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}

/// An action by its commit, with the version for people behind it: a tag can be moved, and jobs of
/// a release can sign.
fn is_pinned(uses: &str) -> bool {
    let Some((action, comment)) = uses.split_once(" # v") else { return false };
    let commit = action.split_once('@').map(|(_, commit)| commit);
    let version = comment.split('.').all(|part| part.parse::<u16>().is_ok());
    commit.is_some_and(|it| is_hex(it, 40)) && version && comment.contains('.')
}

/// An image by its digest, with its tag for people before it.
fn is_fixed(image: &str) -> bool {
    let Some((tag, digest)) = image.split_once("@sha256:") else { return false };
    is_hex(digest, 64) && tag.contains(':')
}

/// The values of a key in the text of all workflows, with comments, which a parser drops.
fn values(key: &str) -> Vec<String> {
    let texts = WORKFLOWS.map(read);
    let lines = texts.iter().flat_map(|text| text.lines());
    let bare = lines.map(|line| line.trim_start().trim_start_matches("- "));
    bare.filter_map(|line| line.strip_prefix(key)).map(|it| it.trim().to_owned()).collect()
}

#[test]
fn every_action_is_pinned_by_commit() {
    let lines = values("uses:");
    for uses in &lines {
        assert!(is_pinned(uses), "{uses}");
    }
    // Nothing is written in a form that the lines above do not have.
    let steps = all_steps();
    assert_eq!(lines.len(), steps.iter().filter(|(_, step)| !step["uses"].is_null()).count());
    assert!(lines.len() >= 10, "only {} actions", lines.len());
    let by_action: BTreeSet<&str> =
        lines.iter().filter_map(|it| it.split_once('@')).map(|(action, _)| action).collect();
    let distinct: BTreeSet<&String> = lines.iter().collect();
    assert_eq!(by_action.len(), distinct.len(), "one commit per action: {distinct:?}");
    for loose in [
        "actions/checkout@main",
        "actions/checkout@v4",
        "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683",
        "actions/checkout@11bd719 # v4.2.2",
        "sigstore/cosign-installer@v4.1.2 # v4.1.2",
    ] {
        assert!(!is_pinned(loose), "{loose}");
    }
}

#[test]
fn every_image_is_pinned_by_digest() {
    let images = values("image:");
    // The list of jobs has one with this name.
    let images: Vec<&String> = images.iter().filter(|it| !it.is_empty()).collect();
    assert_eq!(images.len(), 1, "{images:?}");
    assert!(images.iter().all(|it| is_fixed(it)), "{images:?}");
    assert!(!is_fixed("rust:1-bookworm") && !is_fixed("rust@sha256:6258907a"));
    for workflow in WORKFLOWS {
        for (name, job) in jobs(workflow) {
            assert!(job["services"].is_null(), "{workflow}: {name} has images of services");
            let container = &job["container"];
            assert!(container.is_null() || !container["image"].is_null(), "{workflow}: {name}");
        }
    }
    // The image's own compiler is used, not one that is fetched.
    let dist = &jobs(RELEASE)["dist"];
    let compiler = text(&dist["env"]["RUSTUP_TOOLCHAIN"]).to_owned();
    let image = text(&dist["container"]["image"]).to_owned();
    assert!(image.starts_with(&format!("rust:{compiler}-bookworm@")), "{image} {compiler}");
}

/// Tools that cargo builds in a workflow have a version, too.
#[test]
fn every_installed_tool_has_a_version() {
    let scripts: Vec<String> =
        all_steps().iter().map(|(_, step)| text(&step["run"]).to_owned()).collect();
    let lines = scripts.iter().flat_map(|script| script.lines());
    let installs: Vec<&str> = lines.filter(|line| line.contains("cargo install")).collect();
    assert!(!installs.is_empty());
    for line in installs {
        let tool = line.split_whitespace().last().unwrap_or_default();
        assert!(line.contains("--locked") && tool.contains('@'), "{line}");
    }
}

/// SECURITY.md names lints that deny, and checks of dependencies that CI runs.
#[test]
fn lints_and_checks_are_as_security_md_says() {
    let security = read("SECURITY.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = "the lints deny `unwrap`, `expect`, indexing and `panic!`";
    assert!(security.contains(sentence), "{sentence}");
    let manifest = read("Cargo.toml");
    for lint in ["unwrap_used", "expect_used", "indexing_slicing", "panic", "unsafe_code"] {
        let line = format!("{lint} = \"deny\"");
        assert!(manifest.lines().any(|it| it == line), "{line}");
    }
    assert!(security.contains("known vulnerabilities"));
    assert!(read("deny.toml").contains("[advisories]"));
    let steps = jobs(WORKFLOWS[0])["check"]["steps"].to_string();
    assert!(steps.contains("\"cargo xtask ci\""), "with advisories: {steps}");
}

#[test]
fn permissions_are_minimal() {
    for workflow in WORKFLOWS {
        let value = document(&read(workflow));
        assert_eq!(value["permissions"], serde_json::json!({"contents": "read"}), "{workflow}");
    }
    assert!(jobs(WORKFLOWS[0]).values().all(|job| job["permissions"].is_null()), "CI only reads");
    let release = jobs(RELEASE);
    assert_eq!(release.len(), MAY.len());
    for (name, writes) in MAY {
        let permissions = release[*name]["permissions"].as_object().expect("permissions");
        let may: BTreeSet<&str> = permissions
            .iter()
            .filter(|(_, to)| text(to) == "write")
            .map(|(what, _)| what.as_str())
            .collect();
        assert_eq!(may, writes.iter().copied().collect(), "{name}");
        let others = permissions.iter().filter(|(_, to)| text(to) != "write");
        assert!(
            others.clone().all(|(what, to)| what == "contents" && text(to) == "read"),
            "{name}"
        );
    }
}

/// A name of a branch is written by anyone who opens a pull request; in a script it would be code.
#[test]
fn scripts_contain_no_expressions_and_parse() {
    let mut count = 0;
    for (place, step) in all_steps() {
        let Some(script) = step["run"].as_str() else { continue };
        count += 1;
        assert!(!script.contains("${{"), "{place}: pass it as an environment variable:\n{script}");
        let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash");
        bash.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("a script");
        assert!(bash.wait().expect("an end").success(), "{place}:\n{script}");
    }
    assert!(count >= 15, "only {count} scripts");
}

/// The options of a struct that clap parses.
fn options(path: &str, name: &str) -> BTreeSet<String> {
    let file = syn::parse_file(&read(path)).expect("Rust");
    let found = file.items.iter().find_map(|item| match item {
        syn::Item::Struct(item) if item.ident == name => Some(item),
        _ => None,
    });
    let fields = &found.unwrap_or_else(|| panic!("{path} has no struct {name}")).fields;
    let names = fields.iter().filter_map(|field| field.ident.as_ref());
    names.map(|it| format!("--{}", it.to_string().replace('_', "-"))).collect()
}

#[test]
fn commands_of_workflows_exist() {
    let known = variants("crates/xtask/src/main.rs", "Command");
    let of_dist = options(DIST, "DistOptions");
    let mut faults = Vec::new();
    let mut called = BTreeSet::new();
    for (place, step) in all_steps() {
        let script = text(&step["run"]);
        for line in script.lines().filter_map(|line| line.trim().strip_prefix("cargo xtask ")) {
            let words: Vec<&str> = line.split_whitespace().collect();
            called.insert(words[0].to_owned());
            let options = words.iter().filter(|word| word.starts_with("--"));
            let wrong: Vec<_> =
                options.filter(|it| words[0] == "dist" && !of_dist.contains(**it)).collect();
            if !known.contains(words[0]) || !wrong.is_empty() {
                faults.push(format!("{place}: {line}"));
            }
        }
        let ours = script
            .split_whitespace()
            .filter(|word| word.starts_with("deploy/") || word.starts_with(".ci/"));
        faults.extend(
            ours.filter(|it| !root().join(it).is_file()).map(|it| format!("{place}: {it}")),
        );
    }
    fail_on("commands of workflows", &faults);
    for wanted in ["ci", "deploy-check", "dist", "docs"] {
        assert!(called.contains(wanted), "no workflow calls cargo xtask {wanted}");
    }
    assert!(of_dist.contains("--check-version"));
}

/// The names of files in `dist/` that a script uses, with `{}` for the version and the target.
fn files_in(script: &str) -> BTreeSet<String> {
    let words = script.split(|c: char| c.is_whitespace() || "\"';()".contains(c));
    let files = words.filter(|word| word.starts_with("dist/pointsman"));
    let variables = ["${GITHUB_REF_NAME#v}", "$version", "$target"];
    files
        .map(|file| {
            variables.iter().fold(file.to_owned(), |it, variable| it.replace(variable, "{}"))
        })
        .collect()
}

#[test]
fn files_of_the_release_are_made_by_dist() {
    let scripts = steps_of(&["image", "chart", "release"]);
    let used: BTreeSet<String> =
        scripts.iter().flat_map(|step| files_in(text(&step["run"]))).collect();
    assert_eq!(used, MADE.iter().map(|(file, _)| (*file).to_owned()).collect());
    let source = read(DIST);
    for (file, made) in MADE {
        assert!(source.contains(made), "{file}: {DIST} has no {made}");
    }
    assert!(
        source.contains("format!(\"pointsman-{}-{}\", env!(\"CARGO_PKG_VERSION\"), self.target)")
    );
    assert!(source.contains("SHA256SUMS-{}"));
}

fn steps_of(names: &[&str]) -> Vec<Value> {
    let jobs = jobs(RELEASE);
    names.iter().flat_map(|name| steps(&jobs[*name])).collect()
}

/// The order in which nothing wrong can leave: the version first, then what is built and tried out,
/// then the image, the chart that names it, and last the release that people see.
#[test]
fn release_builds_on_a_checked_version() {
    let jobs = jobs(RELEASE);
    let needs = |name: &str| jobs[name]["needs"].clone();
    assert!(needs("version").is_null());
    assert_eq!(
        (needs("dist"), needs("image"), needs("chart"), needs("release")),
        ("version".into(), "dist".into(), "image".into(), serde_json::json!(["image", "chart"]))
    );
    let version = steps_of(&["version"]);
    let check = version.iter().find(|step| text(&step["run"]).contains("dist --check-version"));
    let check = check.expect("a check of the version");
    assert_eq!(text(&check["if"]), "startsWith(github.ref, 'refs/tags/')");
    for name in ["image", "chart", "release"] {
        assert_eq!(text(&jobs[name]["if"]), "startsWith(github.ref, 'refs/tags/v')", "{name}");
        let checks =
            steps(&jobs[name]).iter().any(|step| text(&step["run"]).contains("sha256sum --check"));
        assert!(checks, "{name} trusts what it downloads");
    }
    assert!(jobs.values().all(|job| !job["timeout-minutes"].is_null()));
}

/// A tag in a registry can move; a signature of it would then stand for something else.
#[test]
fn signatures_name_digests() {
    for (name, least) in [("image", 2), ("chart", 1)] {
        let scripts: Vec<String> =
            steps_of(&[name]).iter().map(|step| text(&step["run"]).to_owned()).collect();
        let lines = scripts.iter().flat_map(|script| script.lines());
        let signing: Vec<&str> = lines
            .map(str::trim)
            .filter(|line| line.starts_with("cosign sign ") || line.starts_with("cosign attest "))
            .collect();
        assert!(signing.len() >= least, "{name}: {signing:?}");
        let by_digest = |line: &&str| line.to_lowercase().contains("@$digest\"");
        assert!(signing.iter().all(by_digest), "{name}: {signing:?}");
        let attested = steps_of(&[name])
            .into_iter()
            .find(|step| text(&step["uses"]).starts_with("actions/attest-"));
        let with = attested.expect("an attestation")["with"].clone();
        assert_eq!(text(&with["push-to-registry"]), "true");
        assert_eq!(text(&with["subject-digest"]), "${{ steps.push.outputs.digest }}");
    }
}

/// The script that joins both images runs where buildah is installed, with a directory as its
/// registry.
#[test]
fn pushes_both_architectures_under_one_name() {
    let has =
        |tool: &str| Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has("buildah") || !has("python3") {
        eprintln!("buildah or python3 is not installed, so deploy/image/push is NOT TESTED");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let run = |script: &str, args: &[&std::ffi::OsStr]| {
        let mut command = Command::new(root().join(script));
        command.args(args).env("SOURCE_DATE_EPOCH", "1700000000");
        let output = command.output().expect("bash");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for arch in ["amd64", "arm64"] {
        let archive = at(&format!("{arch}.tar"));
        run(
            "deploy/image/build",
            &["/bin/true".as_ref(), arch.as_ref(), "1.2.3".as_ref(), archive.as_ref()],
        );
    }
    let (registry, digests) = (format!("oci:{}:1.2.3", at("registry").display()), at("digests"));
    run(
        "deploy/image/push",
        &[registry.as_ref(), digests.as_ref(), at("amd64.tar").as_ref(), at("arm64.tar").as_ref()],
    );
    let said = std::fs::read_to_string(&digests).expect("the digests");
    let said: BTreeMap<&str, &str> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let blob = |digest: &str| {
        let path = at("registry/blobs/sha256").join(digest.trim_start_matches("sha256:"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let list = blob(said["index"]);
    let listed: BTreeMap<&str, &str> = list["manifests"]
        .as_array()
        .expect("images")
        .iter()
        .map(|it| (text(&it["platform"]["architecture"]), text(&it["digest"])))
        .collect();
    assert_eq!(listed.keys().copied().collect::<Vec<_>>(), ["amd64", "arm64"]);
    for (arch, digest) in listed {
        assert_eq!(said[arch], digest);
        assert_eq!(blob(text(&blob(digest)["config"]["digest"]))["architecture"], arch);
    }
}
