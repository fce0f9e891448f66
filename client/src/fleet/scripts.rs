//! Scripts that run on hosts, for any POSIX shell. Their text is constant: all that varies is passed as arguments.
//! Pure.
//!
//! A script's output lines begin with `tau: `, so that they can be told from the greeting of a login shell.

/// Prefix of the lines that a script on a host prints for Tau, because a login shell may print others.
const MARK: &str = "tau: ";

/// Shell script that reports the state of a host. Argument: Tau's folder.
pub(crate) const LOOK: &str = r#"
echo "tau: machine $(uname -sm)"
echo "tau: reached ${SSH_CONNECTION:-}"
home=$(cd -- "$1" 2>/dev/null && pwd -P) || exit 0
echo "tau: binary $(sha256sum "$home/tau" 2>/dev/null | cut -d" " -f1)"
pid=$(cat "$home/pid" 2>/dev/null) || exit 0
case $(readlink "/proc/$pid/exe") in
"$home/tau" | "$home/tau (deleted)")
  echo "tau: running $pid"
  sed -n '/"event":"listening"/{s/^/tau: listening /p;q;}' "$home/log" ;;
esac
tail -n 6 "$home/log" 2>/dev/null | sed "s/^/tau: log /"
"#;

/// Shell script that writes its standard input to a file on a host. Arguments: Tau's folder, the file's name, its mode
/// and its SHA-256.
pub(crate) const COPY: &str = r#"
umask 077
mkdir -p -- "$1" && cd -- "$1" || exit 3
if cat >"$2.new" && [ "$(sha256sum "$2.new" | cut -d" " -f1)" = "$4" ]; then
  chmod "$3" "$2.new" && mv -f -- "$2.new" "$2" && exit 0
fi
rm -f -- "$2.new"
echo "$2 was not copied completely: check the free disk space on the host" >&2
exit 3
"#;

/// Shell script that starts a node on a host and waits until it listens. Arguments: Tau's folder, the number of checks
/// before the script gives up (5 per second), and the node's arguments.
pub(crate) const START: &str = r#"
umask 077
home=$(cd -- "$1" && pwd -P) || exit 3
looks=$2
shift 2
says=$("$home/tau" --version 2>&1) || { echo "the copied program does not run on the host: $says" >&2; exit 3; }
detach=nohup
command -v setsid >/dev/null && detach="setsid nohup"
# What an earlier node has said is gone before this one is looked at: it listened elsewhere.
: >"$home/log" || exit 3
$detach "$home/tau" "$@" >>"$home/log" 2>&1 </dev/null &
pid=$!
echo "$pid" >"$home/pid"
while [ "$looks" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
  if grep -q '"event":"listening".*}$' "$home/log"; then
    sed -n '/"event":"listening"/{s/^/tau: listening /p;q;}' "$home/log"
    exit 0
  fi
  sleep 0.2
  looks=$((looks - 1))
done
kill -KILL "$pid" 2>/dev/null
rm -f -- "$home/pid"
tail -n 6 "$home/log" | sed "s/^/tau: log /"
echo "the node did not start" >&2
exit 4
"#;

/// Shell script that stops the node on a host and removes the copied files. Arguments: Tau's folder, the number of
/// checks (5 per second) before the node is killed, and 1 to remove models and checkpoints too, else 0.
pub(crate) const DOWN: &str = r#"
home=$(cd -- "$1" 2>/dev/null && pwd -P) || exit 0
looks=$2
ours() {
  ls -l /proc/[0-9]*/exe 2>/dev/null | OURS="$home/tau" awk '
    { at = index($0, " -> "); to = substr($0, at + 4); from = substr($0, 1, at - 1) }
    to == ENVIRON["OURS"] || to == ENVIRON["OURS"] " (deleted)" {
      sub(/\/exe$/, "", from); sub(/^.*\/proc\//, "", from); print from
    }'
}
left=$(ours)
if [ -n "$left" ]; then
  # The node ends its workers itself; where there is none, they are all there is.
  pid=$(cat "$home/pid" 2>/dev/null)
  case $(echo " "$left" ") in *" $pid "*) kill -TERM "$pid" ;; *) kill -TERM $left ;; esac
  how=ended
  while left=$(ours); [ -n "$left" ] && [ "$looks" -gt -50 ]; do
    if [ "$looks" -le 0 ]; then how=killed; kill -KILL $left 2>/dev/null; fi
    sleep 0.2
    looks=$((looks - 1))
  done
  if [ -n "$left" ]; then
    echo "processes" $left "cannot be killed, so no file was removed" >&2
    exit 5
  fi
  echo "tau: $how"
fi
cd -- "$home" || exit 3
rm -f -- tau tau.new cluster.pem cluster.pem.new pid log && echo "tau: removed"
if [ "$3" = 1 ]; then rm -rf -- node; else rm -f -- node/*.sock; rmdir -- node 2>/dev/null; fi
if [ -z "$(ls -A)" ]; then cd / && rmdir -- "$home"; else echo "tau: kept $home/"$(ls -A); fi
"#;

/// Quotes a text as one word for a POSIX shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the command line that runs a script with these arguments under any login shell of the user.
pub(crate) fn command(script: &str, arguments: &[String]) -> String {
    let mut words = vec!["sh".to_owned(), "-c".to_owned(), quoted(script), "tau".to_owned()];
    words.extend(arguments.iter().map(|argument| quoted(argument)));
    words.join(" ")
}

/// Output of a script on a host: each line's first word, and the rest of the line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said(Vec<(String, String)>);

impl Said {
    pub(crate) fn parse(output: &str) -> Self {
        let marked = output.lines().filter_map(|line| line.strip_prefix(MARK));
        Self(
            marked
                .map(|line| {
                    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
                    (word.to_owned(), rest.trim().to_owned())
                })
                .collect(),
        )
    }

    /// Returns the rest of the script's first output line that begins with this word.
    pub(crate) fn of(&self, word: &str) -> Option<&str> {
        let said = self.0.iter().find(|(one, _)| one == word);
        said.map(|(_, rest)| rest.as_str())
    }

    /// Returns the rest of each of the script's output lines that begins with this word.
    pub(crate) fn all<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        let said = self.0.iter().filter(move |(one, _)| one == word);
        said.map(|(_, rest)| rest.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn nothing_that_is_handed_over_means_anything_to_a_shell() {
        let awkward = [
            "",
            "a b",
            "it's",
            "$HOME",
            "`id`",
            "a;b",
            "\"",
            "a\nb",
            "*",
            "\\",
            "-n",
            "'; exit 9; '",
        ];
        let arguments = awkward.map(str::to_owned);
        let script = r#"for one in "$@"; do printf '%s\0' "$one"; done"#;
        // As ssh does: the user's shell gets one text.
        let output = Command::new("sh")
            .args(["-c", &command(script, &arguments)])
            .output()
            .unwrap();
        let expected = awkward.join("\0") + "\0";
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn what_a_login_shell_says_is_not_taken_for_ours() {
        let said = Said::parse("Welcome!\ntau: machine Linux x86_64\ntau: log one\nlog no\ntau: log two\ntau: ended\n");
        assert_eq!(said.of("machine"), Some("Linux x86_64"));
        assert_eq!(said.of("ended"), Some(""));
        assert_eq!(said.of("killed"), None);
        assert_eq!(said.all("log").collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn what_an_earlier_node_has_said_is_not_taken_for_this_ones() {
        // All at once, because on a busy machine a script could once read the earlier node's log before it was emptied.
        let begin = |_| {
            let home = tempfile::tempdir().unwrap();
            let program = home.path().join("tau");
            std::fs::write(&program, "#!/bin/sh\n[ \"$1\" = --version ] || exec sleep 2\n").unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
            let said = "{\"event\":\"listening\",\"address\":\"10.0.0.1:7700\"}\n";
            std::fs::write(home.path().join("log"), said).unwrap();
            let arguments = [home.path().to_str().unwrap(), "1", "seed"].map(str::to_owned);
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &command(START, &arguments)])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            (shell.spawn().unwrap(), home)
        };
        let begun: Vec<_> = (0..40).map(begin).collect();
        for (shell, _home) in begun {
            let output = shell.wait_with_output().unwrap();
            let said = Said::parse(&String::from_utf8_lossy(&output.stdout));
            assert_eq!((output.status.code(), said.of("listening")), (Some(4), None));
        }
    }

    #[test]
    fn scripts_are_good_shell() {
        for script in [LOOK, COPY, START, DOWN] {
            let checked = Command::new("sh").args(["-n", "-c", script]).output().unwrap();
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        }
    }
}
