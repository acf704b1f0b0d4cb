//! `hotcell install-unit`.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, exit::say};
use crate::{
    clock::SystemIds,
    unit::{Layout, Unit, install},
};

/// Where to, and what.
#[derive(Args)]
pub(super) struct InstallUnit {
    /// Write beneath this directory, such as the root of an image.
    #[arg(long, value_name = "DIR", default_value = "/")]
    prefix: PathBuf,
    /// The daemon's binary, as the service will find it.
    #[arg(long, value_name = "FILE", default_value = "/usr/local/bin/hotcell")]
    binary: PathBuf,
    /// Let the host route for sandboxes that have a network.
    #[arg(long)]
    egress: bool,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Print the unit and do nothing else.
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
}

impl InstallUnit {
    pub(super) fn run(self) -> Result<(), Exit> {
        if !self.binary.is_absolute() {
            return Err(Exit::words("--binary must be an absolute path"));
        }
        let layout = Layout {
            binary: self.binary,
            ..Layout::usual()
        };
        if self.print {
            let text = Unit::shared().render(&layout);
            return say(text.trim_end());
        }
        let done = install(&self.prefix, &layout, self.egress, self.dry_run, &SystemIds)
            .map_err(|error| Exit::failed(&error))?;
        for one in done {
            say(&format!(
                "{} {}",
                phrase(self.dry_run, one.what),
                one.path.display()
            ))?;
        }
        say(
            "next: hotcell check-config && systemctl daemon-reload && systemctl enable --now hotcell",
        )
    }
}

/// What was done, or what would be.
fn phrase(is_dry: bool, what: &str) -> String {
    match what {
        "left as it is" if is_dry => "would leave as it is:".into(),
        "left as it is" => "left as it is:".into(),
        "wrote" if is_dry => "would write".into(),
        "replaced" if is_dry => "would replace".into(),
        "removed" if is_dry => "would remove".into(),
        what => what.into(),
    }
}
