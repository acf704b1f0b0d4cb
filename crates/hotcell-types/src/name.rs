//! File names and paths as a caller may write them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    limits,
    volume::{TMP_PATH, VolumeKind, WORKSPACE_PATH},
};

/// Why a string is no file name or path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name or path is empty.
    #[error("it is empty")]
    Empty,
    /// Longer than the file system or hotcell takes.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// `.` or `..` where a name must stand.
    #[error(". and .. are not names")]
    Dots,
    /// A `/` inside a single name.
    #[error("a file name holds no /")]
    Slash,
    /// A NUL byte.
    #[error("it holds a NUL byte")]
    Nul,
    /// A path that leaves its root by `..`.
    #[error("it leads outside by ..")]
    Escapes,
}

/// One file name: a single path component, at most 255 bytes, any UTF-8 but `/` and NUL.
///
/// Everything that Linux allows is allowed, also control characters and quotes: what a
/// name may do to a header or a page is the business of the code that writes it there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

impl FileName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part after the last dot, lower-cased, unless the dot starts or ends the name.
    #[must_use]
    pub fn extension(&self) -> Option<String> {
        match self.0.rsplit_once('.') {
            Some((stem, extension)) if !stem.is_empty() && !extension.is_empty() => {
                Some(extension.to_lowercase())
            }
            _ => None,
        }
    }
}

impl FromStr for FileName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            Err(NameError::Empty)
        } else if text.len() > limits::MAX_FILE_NAME_BYTES {
            Err(NameError::TooLong(limits::MAX_FILE_NAME_BYTES))
        } else if text == "." || text == ".." {
            Err(NameError::Dots)
        } else if text.contains('/') {
            Err(NameError::Slash)
        } else if text.contains('\0') {
            Err(NameError::Nul)
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

/// A path inside a sandbox, absolute and without `.`, `..` or empty components.
///
/// A relative path is taken from `/workspace`. `..` is resolved in the text, so a path
/// that would climb above `/` is refused; symbolic links are the business of whoever opens it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxPath(String);

impl SandboxPath {
    /// The path as text; starts with `/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component, or nothing for `/`.
    #[must_use]
    pub fn file_name(&self) -> Option<FileName> {
        self.0.rsplit('/').next().and_then(|name| name.parse().ok())
    }

    /// Whether this path is `root` or lies below it.
    #[must_use]
    pub fn is_beneath(&self, root: &str) -> bool {
        self.0 == root
            || self
                .0
                .strip_prefix(root)
                .is_some_and(|rest| root == "/" || rest.starts_with('/'))
    }

    /// The volume or scratch directory that this path lies in, if it lies in one.
    #[must_use]
    pub fn directory(&self) -> Option<&'static str> {
        let volumes = VolumeKind::ALL.map(VolumeKind::mount_path);
        let mut all = volumes.into_iter().chain([WORKSPACE_PATH, TMP_PATH]);
        all.find(|root| self.is_beneath(root))
    }
}

impl FromStr for SandboxPath {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > limits::MAX_PATH_BYTES {
            return Err(NameError::TooLong(limits::MAX_PATH_BYTES));
        }
        if text.contains('\0') {
            return Err(NameError::Nul);
        }
        let base = if text.starts_with('/') {
            ""
        } else {
            WORKSPACE_PATH
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in base.split('/').chain(text.split('/')) {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop().ok_or(NameError::Escapes)?;
                }
                name => parts.push(name),
            }
        }
        Ok(Self(format!("/{}", parts.join("/"))))
    }
}

macro_rules! as_string {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
as_string!(FileName);
as_string!(SandboxPath);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_single_components() {
        for good in [
            "a b",
            "%41.txt",
            "..foo",
            "back\\slash",
            "a\r\nb",
            ".htaccess",
            "测试 报告.pdf",
        ] {
            assert_eq!(
                good.parse::<FileName>().map(String::from),
                Ok(good.to_owned())
            );
        }
        assert_eq!("".parse::<FileName>(), Err(NameError::Empty));
        assert_eq!("..".parse::<FileName>(), Err(NameError::Dots));
        assert_eq!("a/b".parse::<FileName>(), Err(NameError::Slash));
        assert_eq!("a\0".parse::<FileName>(), Err(NameError::Nul));
        assert_eq!(
            "x".repeat(256).parse::<FileName>(),
            Err(NameError::TooLong(255))
        );
    }

    #[test]
    fn extensions_are_the_real_last_one() {
        let extension = |name: &str| name.parse::<FileName>().ok().and_then(|n| n.extension());
        assert_eq!(extension("x.PNG.Html").as_deref(), Some("html"));
        assert_eq!(extension(".bashrc"), None);
        assert_eq!(extension("x.html."), None);
        assert_eq!(extension("plain"), None);
    }

    #[test]
    fn paths_are_absolute_and_normal() {
        let path = |text: &str| text.parse::<SandboxPath>().map(String::from);
        assert_eq!(path("a.txt"), Ok("/workspace/a.txt".into()));
        assert_eq!(
            path("/mnt//user-data/./x/../y"),
            Ok("/mnt/user-data/y".into())
        );
        assert_eq!(path("../etc/passwd"), Ok("/etc/passwd".into()));
        assert_eq!(path("/.."), Err(NameError::Escapes));
        assert_eq!(path("../../x"), Err(NameError::Escapes));
        let inside: SandboxPath = "/workspace/x".parse().expect("a path");
        assert!(inside.is_beneath("/workspace"));
        assert!(!inside.is_beneath("/work"));
    }
}
