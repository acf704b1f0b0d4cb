//! What bash reads before the text of a command: the state of the call before, and a hook
//! that saves the state of this one.
//!
//! A shell that is started ahead of its command waits in the prelude's first line, before anything of
//! the command is there; bash opens the command's file only after the prelude.
//!
//! The command's own file holds exactly the bytes that were sent. All plumbing goes through
//! `BASH_ENV`, which bash reads first; it defines no function and no variable that the
//! command would see.
//!
//! ```text
//! call-7        the command, byte for byte
//! call-7.rc     the prelude (BASH_ENV)
//! call-7.state  pwd LF NUL exports NUL end      written by the EXIT hook, builtins only
//! ```
//!
//! A command may set an EXIT trap of its own, which replaces the hook. Where its text holds
//! the word `trap`, three more files come along and a DEBUG trap that looks at every command
//! of the main script: after a `trap` or a call of a function it puts the hook in front of
//! whatever EXIT trap is there now. In the EXIT trap itself DEBUG runs once more, which covers
//! a `trap` that was the last command. The hook keeps `$?` and `$_`. Only a script that gets
//! its EXIT trap elsewhere (a sourced file, `eval`), replaces the DEBUG trap too, or leaves
//! by `exec` ends without it; the agent sees that and says so.

use std::path::Path;

use crate::environment::Variables;

/// The hook's last word; a state file without it is half-written.
const END: &[u8] = b"end";

/// What bash shall start with.
#[derive(Debug, Default)]
pub(crate) struct Start<'a> {
    /// `export -p` of the call before, its words.
    pub(crate) exports: Option<&'a [u8]>,
    /// Variables that only the call before had, each with its value in the sandbox's own
    /// environment.
    pub(crate) restore: Vec<(&'a [u8], Option<&'a [u8]>)>,
    /// Variables of this call, over all others.
    pub(crate) set: Option<&'a Variables>,
    /// It is started before there is a command, and waits for a line of its stdin.
    pub(crate) waits: bool,
}

/// A file that must be there before bash starts: its suffix and content.
pub(crate) type Extra = (&'static str, Vec<u8>);

/// Whether bash takes this as the name of a variable.
pub(crate) fn is_identifier(name: &[u8]) -> bool {
    name.first()
        .is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_')
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// The prelude. `base` is the path of the command's file; with `save` the state is saved.
pub(crate) fn prelude(start: &Start<'_>, base: &Path, save: bool, has_trap: bool) -> Vec<u8> {
    let mut out = Vec::new();
    if start.waits {
        // The one variable that is unset next. Nobody shall notice that the shell is older than its
        // command.
        out.extend_from_slice(
            b"builtin read -r BASH_ENV || builtin exit\nexec </dev/null\nSECONDS=0\n",
        );
    }
    // The working directory is where bash was started, not what was exported as such; a
    // positional parameter keeps it without a variable.
    out.extend_from_slice(b"unset -v BASH_ENV\nset -- \"$PWD\"\n");
    out.extend_from_slice(b"{\n:\n");
    if let Some(exports) = start.exports {
        out.extend_from_slice(exports);
        out.push(b'\n');
    }
    for (name, value) in start.restore.iter().filter(|(name, _)| is_identifier(name)) {
        match value {
            Some(value) => export(&mut out, name, value),
            None => out.extend_from_slice(&[b"unset -v ", *name, b"\n"].concat()),
        }
    }
    for (name, value) in start
        .set
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_identifier(name))
    {
        export(&mut out, name, value);
    }
    // Readonly variables of bash itself can be exported but not set again.
    out.extend_from_slice(b"} 2>/dev/null\nPWD=$1\nset --\n");
    if save {
        out.extend_from_slice(b"trap -- ");
        out.extend_from_slice(&quote(&first_trap(base)));
        out.extend_from_slice(b" EXIT\n");
        if has_trap {
            out.extend_from_slice(b"trap -- ");
            out.extend_from_slice(&quote(&watch(base)));
            out.extend_from_slice(b" DEBUG\n");
        }
    }
    out.extend_from_slice(b":\n");
    out
}

fn export(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(&[b"export ", name, b"=", quote(value).as_slice(), b"\n"].concat());
}

/// The files of the DEBUG trap.
pub(crate) fn trap_files(base: &Path) -> Vec<Extra> {
    let source = |suffix: &str| [b"builtin . ".as_slice(), &path(base, suffix)].concat();
    let hook = hook(base);
    // Keeps `$?`, since the command's own trap may ask for it. What stands before `&&` may
    // fail under `set -e`.
    let kept_hook = [
        b"{ ".as_slice(),
        &source(".save"),
        b" \"$?\" && :; } 2>/dev/null",
    ]
    .concat();
    let save = [hook.as_slice(), b"\nbuiltin return \"$1\"\n"].concat();

    let arm = [
        b"builtin trap -- ".as_slice(),
        &quote(&rewrap(base)),
        b" DEBUG",
    ]
    .concat();
    let sees_trap: &[u8] = b"if [[ $BASH_COMMAND == *trap[[:space:]]* ]] || \
        builtin declare -F -- \"${BASH_COMMAND%%[[:space:]]*}\" >/dev/null; then ";
    let watch_file = [sees_trap, &arm, b"; fi\n:\n"].concat();

    // `trap -p` prints a command that sets the trap again. Behind `. call-7.wrap` its words
    // become the parameters of that file: $3 is the trap's text.
    let rewrap_file = [
        hook.as_slice(),
        b"\nbuiltin trap -- ",
        &quote(&watch(base)),
        b" DEBUG\n{ builtin printf '%s ' ",
        &quote(&source(".wrap")),
        b"; builtin trap -p EXIT; builtin printf '\\n'; } >|",
        &path(base, ".trap"),
        b"\n",
        &source(".trap"),
        b"\n",
        &watch_file,
    ]
    .concat();
    let quoted = quote(&kept_hook);
    let quoted_first = quote(&first_trap(base));
    let wrap_file = [
        b"case \"${3-}\" in\n(".as_slice(),
        &quoted,
        b"*|",
        &quoted_first,
        b"*) ;;\n(*) builtin trap -- ",
        &quoted,
        b"$'\\n'\"${3-}\" EXIT ;;\nesac\n",
    ]
    .concat();
    vec![
        (".save", save),
        (".watch", watch_file),
        (".rewrap", rewrap_file),
        (".wrap", wrap_file),
    ]
}

/// What lies beside the command's file, and itself.
pub(crate) const SUFFIXES: [&str; 3] = ["", ".rc", ".state"];

/// What may lie there too when the text holds the word `trap`.
pub(crate) const TRAP_SUFFIXES: [&str; 5] = [".save", ".watch", ".rewrap", ".wrap", ".trap"];

/// Saves the state, with builtins only. Errors and traces of it are nobody's business; with
/// `set -x` a trace would go to stderr, which is redirected for the whole group.
fn hook(base: &Path) -> Vec<u8> {
    [
        b"{ { builtin pwd; builtin printf '\\0'; builtin export -p; builtin export -pf; \
            builtin printf '\\0end'; } >|"
            .as_slice(),
        &path(base, ".state"),
        b"; } 2>/dev/null",
    ]
    .concat()
}

/// The EXIT trap at the start. It must not fail: under `set -e` that would be the exit code.
fn first_trap(base: &Path) -> Vec<u8> {
    [hook(base).as_slice(), b" || :"].concat()
}

fn watch(base: &Path) -> Vec<u8> {
    debug(base, ".watch")
}

fn rewrap(base: &Path) -> Vec<u8> {
    debug(base, ".rewrap")
}

/// As the last argument of `.` the old `$_` becomes the new one.
fn debug(base: &Path, suffix: &str) -> Vec<u8> {
    [
        b"{ builtin . ".as_slice(),
        &path(base, suffix),
        b" \"$_\"; } 2>/dev/null || :",
    ]
    .concat()
}

fn path(base: &Path, suffix: &str) -> Vec<u8> {
    let mut name = base.as_os_str().to_owned();
    name.push(suffix);
    quote(name.as_encoded_bytes())
}

/// Quotes for bash.
fn quote(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'\'');
    for &byte in text {
        if byte == b'\'' {
            out.extend_from_slice(b"'\\''");
        } else {
            out.push(byte);
        }
    }
    out.push(b'\'');
    out
}

/// Working directory and exports of a state file, if it is whole.
pub(crate) fn parse_state(content: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut parts = content.splitn(3, |&byte| byte == 0);
    let cwd = parts.next()?.strip_suffix(b"\n")?;
    let exports = parts.next()?;
    (parts.next()? == END && cwd.first() == Some(&b'/')).then(|| (cwd.to_vec(), exports.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_state_is_none() {
        assert_eq!(
            parse_state(b"/a\nb\n\0declare -x A\n\0end"),
            Some((b"/a\nb".to_vec(), b"declare -x A\n".to_vec()))
        );
        for bad in [
            b"".as_slice(),
            b"/a\n\0x",
            b"/a\n\0x\0en",
            b"/a\n\0x\0end\0",
            b"a\n\0x\0end",
            b"\n\0\0end",
        ] {
            assert_eq!(parse_state(bad), None);
        }
    }

    #[test]
    fn quotes_hold_anything() {
        assert_eq!(quote(b"a'b"), b"'a'\\''b'");
        assert!(is_identifier(b"_A1"));
        for bad in [b"".as_slice(), b"1A", b"A-B", b"A B", b"\xc3\xa4"] {
            assert!(!is_identifier(bad));
        }
    }
}
