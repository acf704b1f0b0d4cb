//! `hotcell image`: works on the image directory, whether or not a daemon runs.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Subcommand;
use hotcell_runtime_embedded::{ImageError, ImageStore, images_in_use};

use super::{Exit, Settings, exit::say};

#[derive(Subcommand)]
pub(super) enum ImageCommand {
    /// Unpacks a root file system and keeps it under a name.
    ///
    /// An older image of that name stays until it is removed, and sandboxes made from it keep it.
    Import {
        /// A plain tar of a root file system; it must hold bash.
        file: PathBuf,
        /// What to call it, such as `base`.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Lists the images.
    List {
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Removes an image that no sandbox was made from.
    Remove {
        /// Its name or digest.
        image: String,
        #[command(flatten)]
        settings: Settings,
    },
}

fn failed(error: ImageError) -> Exit {
    Exit::failed(&error)
}

pub(super) fn run(command: ImageCommand) -> Result<(), Exit> {
    match command {
        ImageCommand::Import {
            file,
            name,
            settings,
        } => {
            let images = open(&settings)?;
            let info = images.import(&file, &name, &mut |_| {}).map_err(failed)?;
            say(&format!(
                "{} {} {} bytes",
                info.name, info.image, info.bytes
            ))
        }
        ImageCommand::List { json, settings } => {
            let images = open(&settings)?.list().map_err(failed)?;
            if json {
                let by_name: Vec<_> = images
                    .iter()
                    .map(|info| {
                        BTreeMap::from([
                            ("name", serde_json::Value::from(info.name.clone())),
                            ("image", info.image.to_string().into()),
                            ("bytes", info.bytes.into()),
                        ])
                    })
                    .collect();
                let text = serde_json::to_string_pretty(&by_name);
                return say(&text.map_err(|error| Exit::failed(&error))?);
            }
            for info in images {
                say(&format!(
                    "{}\t{}\t{} bytes",
                    info.name, info.image, info.bytes
                ))?;
            }
            Ok(())
        }
        ImageCommand::Remove { image, settings } => {
            let config = settings.load(None, None)?;
            let images = ImageStore::open(&config.image_dir()).map_err(failed)?;
            let info = images.resolve(&image).map_err(failed)?;
            let in_use = images_in_use(&config.state_dir);
            let in_use = in_use.map_err(|error| Exit::failed(&error))?;
            images.remove(&info.image, &in_use).map_err(failed)?;
            say(&format!("removed {}", info.image))
        }
    }
}

fn open(settings: &Settings) -> Result<ImageStore, Exit> {
    let config = settings.load(None, None)?;
    ImageStore::open(&config.image_dir()).map_err(failed)
}
