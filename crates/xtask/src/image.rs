//! Builds images from the distribution's packages.
//!
//! A recipe is the list below; its hash names the result, so an image is built once per recipe
//! and distribution release. File times come from a fixed epoch and caches are removed, so two
//! builds from the same package versions give the same tree.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sha2::{Digest, Sha256};

use crate::{
    provision,
    shell::{self, step},
};

/// The images that can be built here.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// bash, coreutils and Python with pandas, matplotlib and the office formats.
    Base,
    /// Everything that an assistant may be asked for: nine languages, LibreOffice, Pandoc.
    Universal,
}

impl Name {
    /// What people call it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Universal => "universal",
        }
    }
}

struct Recipe {
    packages: &'static [&'static str],
    /// Pure Python packages that the distribution lacks: name, version, SHA-256 of the wheel.
    wheels: &'static [(&'static str, &'static str, &'static str)],
}

const BASE: Recipe = Recipe {
    packages: &[
        "bash",
        "ca-certificates",
        "coreutils",
        "procps",
        "python3",
        "python3-docx",
        "python3-lxml",
        "python3-matplotlib",
        // Or fonttools, which matplotlib needs, takes scipy and a compiler instead: 500 MB.
        "python3-munkres",
        "python3-openpyxl",
        "python3-pandas",
        "python3-pil",
        "python3-pip",
        "python3-typing-extensions",
        "python3-xlsxwriter",
    ],
    wheels: &[(
        "python-pptx",
        "1.0.2",
        "160838e0b8565a8b1f67947675886e9fea18aa5e795db7ae531606d68e785cba",
    )],
};

/// What Debian lacks of the promised runtimes is PowerShell. The image that Nix builds has it.
const UNIVERSAL: Recipe = Recipe {
    packages: &[
        "bash",
        "build-essential",
        "ca-certificates",
        "cargo",
        "composer",
        "coreutils",
        "curl",
        "default-jdk-headless",
        "fonts-dejavu",
        "fonts-liberation",
        "git",
        "golang-go",
        "jq",
        "libreoffice-calc",
        "libreoffice-impress",
        "libreoffice-writer",
        "nodejs",
        "npm",
        "pandoc",
        "php-cli",
        "poppler-utils",
        "procps",
        "python3",
        "python3-docx",
        "python3-lxml",
        "python3-matplotlib",
        "python3-munkres",
        "python3-openpyxl",
        "python3-pandas",
        "python3-pil",
        "python3-pip",
        "python3-scipy",
        "python3-sklearn",
        "python3-typing-extensions",
        "python3-venv",
        "python3-xlsxwriter",
        "ruby",
        "rustc",
        "sqlite3",
        "unzip",
        "zip",
    ],
    wheels: BASE.wheels,
};

const EPOCH: &str = "1700000000";
const CLEAN_UP: &str = "rm -rf \"$1\"/var/cache/apt/* \"$1\"/var/lib/apt/lists/* \"$1\"/var/log/* \
                        \"$1\"/tmp/* \"$1\"/root/.cache; \
                        mkdir -p \"$1\"/workspace \"$1\"/mnt/skills \"$1\"/mnt/uploaded-files \
                        \"$1\"/mnt/user-data \"$1\"/mnt/workspace-data \"$1\"/.hotcell";

fn recipe_hash(name: Name, recipe: &Recipe, release: &str) -> String {
    let mut text = format!("3\n{}\n{release}\n{EPOCH}\n{CLEAN_UP}\n", name.as_str());
    for package in recipe.packages {
        let _ = writeln!(text, "{package}");
    }
    for (wheel, version, hash) in recipe.wheels {
        let _ = writeln!(text, "{wheel} {version} {hash}");
    }
    hex::encode(&Sha256::digest(text.as_bytes())[..8])
}

/// Builds the image unless it is there, and returns the path of its tar file.
pub(crate) fn build(name: Name, force: bool) -> Result<PathBuf> {
    // A development shell brings one that was built by other means.
    let variable = format!("HOTCELL_IMAGE_{}_TAR", name.as_str().to_uppercase());
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let recipe = match name {
        Name::Base => &BASE,
        Name::Universal => &UNIVERSAL,
    };
    let release = provision::release_codename()?;
    let directory = shell::target().join("images");
    std::fs::create_dir_all(&directory)?;
    let hash = recipe_hash(name, recipe, &release);
    let tar = directory.join(format!("{}-{release}-{hash}.tar", name.as_str()));
    if tar.exists() && !force {
        return Ok(tar);
    }
    step(&format!(
        "building the image {} from {} packages of {release} (minutes, once)",
        name.as_str(),
        recipe.packages.len()
    ));
    let wheels = tempfile::tempdir()?;
    fetch_wheels(recipe, wheels.path())?;
    let unpack = format!(
        "for wheel in {}/*.whl; do [ -e \"$wheel\" ] || continue; \
         {} -m zipfile -e \"$wheel\" \"$1\"/usr/lib/python3/dist-packages/; done",
        wheels.path().display(),
        provision::SYSTEM_PYTHON,
    );
    let partial = tar.with_extension("tar.partial");
    let mut command = shell::limited(3_000, "mmdebstrap");
    command.env("SOURCE_DATE_EPOCH", EPOCH).args([
        "--quiet",
        "--variant=minbase",
        "--mode=root",
        "--format=tar",
        "--aptopt=Acquire::Retries \"5\"",
        "--aptopt=APT::Install-Recommends \"false\"",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
    ]);
    if name == Name::Universal {
        // The JDK's packages link their manuals there when they are set up, manuals or not.
        command.arg("--essential-hook=mkdir -p \"$1\"/usr/share/man/man1");
    }
    command.arg(format!("--include={}", recipe.packages.join(",")));
    command.arg(format!("--customize-hook={unpack}"));
    command.arg(format!("--customize-hook={CLEAN_UP}"));
    command
        .arg(&release)
        .arg(&partial)
        .arg(format!("deb {} {release} main", provision::mirror()?));
    shell::quiet(&mut command)?;
    std::fs::rename(&partial, &tar)?;
    Ok(tar)
}

fn fetch_wheels(recipe: &Recipe, directory: &Path) -> Result<()> {
    if recipe.wheels.is_empty() {
        return Ok(());
    }
    let mut wanted = String::new();
    for (wheel, version, hash) in recipe.wheels {
        if hash.len() != 64 {
            bail!("the wheel {wheel} has no hash");
        }
        writeln!(wanted, "{wheel}=={version} --hash=sha256:{hash}")?;
    }
    let list = directory.join("wheels.txt");
    std::fs::write(&list, wanted)?;
    let mut command = shell::limited(300, "pip3");
    command.args([
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "-d",
    ]);
    command.arg(directory).arg("-r").arg(&list);
    shell::quiet(&mut command).context("cannot fetch the Python packages of the image")
}
