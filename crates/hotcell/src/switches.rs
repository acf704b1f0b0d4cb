//! The break-glass switches: two environment variables that stand above everything an operator
//! can set over the API.
//!
//! | variable | effect |
//! |---|---|
//! | `HOTCELL_ENABLED=false` | no code runs, whatever the deployment's switch says |
//! | `HOTCELL_CONFIG_LOCKED=true` | no profile and no setting can be changed |

use crate::config::ConfigError;

/// Forces code execution off.
const ENABLED: &str = "HOTCELL_ENABLED";
/// Locks profiles and settings.
const CONFIG_LOCKED: &str = "HOTCELL_CONFIG_LOCKED";

/// The break-glass switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Switches {
    /// Whether the environment forces everything off.
    pub forced_off: bool,
    /// Whether the environment locks profiles and settings.
    pub config_locked: bool,
}

impl Switches {
    /// What the environment of this process says.
    ///
    /// # Errors
    /// A variable has a value that is neither yes nor no: whoever pulls a break-glass switch
    /// must not find out later that it was misspelt.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::parse(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn parse(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, ConfigError> {
        let flag = |name| variable(name).map_or(Ok(None), |text| flag(name, &text));
        Ok(Self {
            forced_off: flag(ENABLED)? == Some(false),
            config_locked: flag(CONFIG_LOCKED)? == Some(true),
        })
    }
}

fn flag(key: &'static str, text: &str) -> Result<Option<bool>, ConfigError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "true" | "1" | "yes" | "on" => Ok(Some(true)),
        "false" | "0" | "no" | "off" => Ok(Some(false)),
        _ => Err(ConfigError::Value {
            key: key.into(),
            problem: "(an environment variable) must be true or false".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_word_counts() {
        let parse = |enabled: Option<&str>, locked: Option<&str>| {
            let (enabled, locked) = (enabled.map(str::to_owned), locked.map(str::to_owned));
            Switches::parse(|name| {
                if name == ENABLED {
                    enabled.clone()
                } else {
                    locked.clone()
                }
            })
        };
        assert_eq!(parse(None, None).unwrap(), Switches::default());
        assert_eq!(
            parse(Some("true"), Some("false")).unwrap(),
            Switches::default()
        );
        assert_eq!(parse(Some(""), Some(" ")).unwrap(), Switches::default());
        let both = Switches {
            forced_off: true,
            config_locked: true,
        };
        for (off, on) in [
            ("false", "true"),
            ("FALSE", "1"),
            (" no ", "Yes"),
            ("0", "on"),
        ] {
            assert_eq!(parse(Some(off), Some(on)).unwrap(), both);
        }
        for typo in ["flase", "disabled", "2", "null"] {
            let refused = parse(Some(typo), None).unwrap_err().to_string();
            assert!(refused.contains(ENABLED), "{refused}");
            let refused = parse(None, Some(typo)).unwrap_err().to_string();
            assert!(refused.contains(CONFIG_LOCKED), "{refused}");
        }
    }
}
