//! The environment that commands get, and who they run as.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use hotcell_agent_proto::{AgentError, AgentErrorCode};
use hotcell_types::limits::agent::MAX_PASSWD_BYTES;
use hotcell_types::limits::{MAX_ENV_VAR_BYTES, MAX_ENV_VARS};

use crate::config::Config;

/// Variables by name. Names and values are bytes: user code may export anything.
pub(crate) type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Set whatever the image says: nobody is there to answer a prompt, leave a pager or use an
/// editor, and there is no terminal.
const NO_PROMPTS: [(&str, &str); 12] = [
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("EDITOR", "true"),
    ("GIT_EDITOR", "true"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("MANPAGER", "cat"),
    ("PAGER", "cat"),
    ("PIP_NO_INPUT", "1"),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("SYSTEMD_PAGER", "cat"),
    ("TERM", "dumb"),
    ("VISUAL", "true"),
];

/// Who everything in the sandbox runs as.
#[derive(Debug)]
pub(crate) struct User {
    uid: String,
    name: Option<String>,
}

impl User {
    /// The user of this process.
    pub(crate) fn current() -> Self {
        let uid = rustix::process::getuid().as_raw().to_string();
        let name = name_of(&uid);
        Self { uid, name }
    }

    /// Checks the user that a request names.
    ///
    /// # Errors
    /// [`AgentErrorCode::NoSuchUser`] for anybody else.
    pub(crate) fn check(&self, wanted: Option<&str>) -> Result<(), AgentError> {
        match wanted {
            None => Ok(()),
            Some(wanted) if wanted == self.uid || Some(wanted) == self.name.as_deref() => Ok(()),
            Some(wanted) => Err(AgentError::new(
                AgentErrorCode::NoSuchUser,
                format!(
                    "there is no user {wanted} to run as; everything runs as {}",
                    self.name()
                ),
            )),
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.uid)
    }
}

fn name_of(uid: &str) -> Option<String> {
    let mut passwd = Vec::new();
    File::open("/etc/passwd")
        .ok()?
        .take(MAX_PASSWD_BYTES)
        .read_to_end(&mut passwd)
        .ok()?;
    String::from_utf8_lossy(&passwd).lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid)).then(|| name.to_owned())
    })
}

/// The sandbox's own environment: the image's, completed.
pub(crate) fn base(config: &Config, user: &User) -> Variables {
    let mut variables: Variables = config
        .inherited
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    for (name, value) in [("PATH", DEFAULT_PATH), ("LANG", "C.UTF-8")] {
        variables.entry(name.into()).or_insert_with(|| value.into());
    }
    for (name, value) in NO_PROMPTS
        .into_iter()
        .chain([("USER", user.name()), ("LOGNAME", user.name())])
    {
        variables.insert(name.into(), value.into());
    }
    variables.insert(
        b"HOME".to_vec(),
        config.workspace.as_os_str().as_bytes().to_vec(),
    );
    for stale in ["PWD", "OLDPWD", "SHLVL", "_"] {
        variables.remove(stale.as_bytes());
    }
    variables
}

/// Checks the environment of a request.
///
/// # Errors
/// [`AgentErrorCode::EnvTooLarge`] for a variable that the kernel does not take,
/// [`AgentErrorCode::BadRequest`] for too many or for what is no variable.
pub(crate) fn parse(env: &BTreeMap<String, String>) -> Result<Variables, AgentError> {
    if env.len() > MAX_ENV_VARS {
        return Err(AgentError::new(
            AgentErrorCode::BadRequest,
            format!("more than {MAX_ENV_VARS} environment variables"),
        ));
    }
    env.iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(AgentError::new(
                    AgentErrorCode::BadRequest,
                    format!("{name:?} is no environment variable"),
                ));
            }
            if name.len() + 1 + value.len() > MAX_ENV_VAR_BYTES {
                return Err(AgentError::new(
                    AgentErrorCode::EnvTooLarge,
                    format!("the variable {name} is longer than {MAX_ENV_VAR_BYTES} bytes"),
                ));
            }
            Ok((name.clone().into_bytes(), value.clone().into_bytes()))
        })
        .collect()
}

/// `NAME=VALUE` each.
pub(crate) fn joined(variables: &Variables) -> Vec<Vec<u8>> {
    variables
        .iter()
        .map(|(name, value)| [name, b"=".as_slice(), value].concat())
        .collect()
}

/// The first `bash` of the search path.
pub(crate) fn find_bash(base: &Variables) -> Option<PathBuf> {
    let path = base.get(b"PATH".as_slice())?;
    path.split(|&byte| byte == b':')
        .map(|directory| Path::new(std::ffi::OsStr::from_bytes(directory)).join("bash"))
        .filter(|path| path.is_absolute())
        .find(|path| {
            path.metadata()
                .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_bounded_and_well_formed() {
        let one = |name: &str, value: &str| {
            parse(&BTreeMap::from([(name.to_owned(), value.to_owned())])).map_err(|e| e.code)
        };
        assert!(one("A", "").is_ok());
        assert_eq!(
            one("A", &"x".repeat(200_000)),
            Err(AgentErrorCode::EnvTooLarge)
        );
        assert!(one("A", &"x".repeat(MAX_ENV_VAR_BYTES - 2)).is_ok());
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            assert_eq!(one(name, value), Err(AgentErrorCode::BadRequest));
        }
        let many = (0..=MAX_ENV_VARS)
            .map(|n| (format!("V{n}"), String::new()))
            .collect();
        assert!(parse(&many).is_err());
    }

    #[test]
    fn only_the_sandbox_user_runs() {
        let user = User {
            uid: "1000".into(),
            name: Some("sandbox".into()),
        };
        for good in [None, Some("1000"), Some("sandbox")] {
            assert!(user.check(good).is_ok());
        }
        for bad in ["root", "0", "", "sandbox "] {
            assert_eq!(
                user.check(Some(bad)).map_err(|error| error.code),
                Err(AgentErrorCode::NoSuchUser)
            );
        }
    }
}
