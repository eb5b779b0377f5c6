//! Other people with an account on this machine: they reach servers on loopback.

use std::collections::BTreeSet;

/// Named accounts in a note.
const NAMED: usize = 3;

/// Others who can log in or run processes, in words; `None` if there are none, or if it is not known (Linux only).
pub(super) fn found() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata("/proc/self").ok()?.uid();
        let is_process =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
        let running: BTreeSet<u32> = entries.filter_map(|entry| Some(entry.metadata().ok()?.uid())).collect();
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        in_words(&others(&String::from_utf8_lossy(&passwd), &running, own))
    }
    #[cfg(not(target_os = "linux"))]
    in_words(&others("", &BTreeSet::new(), 0))
}

/// Names of people other than `own`: accounts of a passwd file with a login shell, and users of running processes.
fn others(passwd: &str, running: &BTreeSet<u32>, own: u32) -> Vec<String> {
    // System accounts have uids below 1000 (login.defs); the range above is of systemd's dynamic services, and ends with nobody.
    let is_other = |uid: u32| uid >= 1000 && !(61_184..=65_535).contains(&uid) && uid != own;
    let mut runs: BTreeSet<u32> = running.iter().copied().filter(|uid| is_other(*uid)).collect();
    let mut names = Vec::new();
    for line in passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, _, _, _, shell] = fields.as_slice() else { continue };
        let Some(uid) = uid.parse().ok().filter(|uid| is_other(*uid)) else { continue };
        // An empty field is /bin/sh.
        let logs_in = !["nologin", "false", "true", "sync"].iter().any(|none| shell.trim().ends_with(none));
        if runs.remove(&uid) || logs_in {
            names.push(name.to_owned());
        }
    }
    names.extend(runs.into_iter().map(|uid| format!("uid {uid}")));
    names
}

fn in_words(others: &[String]) -> Option<String> {
    match others {
        [] => None,
        [one] => Some(format!("another user ({one})")),
        several => {
            let named = several.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if several.len() > NAMED { ", ..." } else { "" };
            Some(format!("{} other users ({named}{more})", several.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
alice:x:1000:1000:Alice,,,:/home/alice:/bin/bash
bob:x:1001:1001::/home/bob:
service:x:1002:1002::/srv:/usr/sbin/nologin
short:x:1003
odd:x:many:1::/:/bin/sh
carol:x:200001:200001::/home/carol:/usr/bin/zsh
";

    #[test]
    fn others_are_accounts_with_a_login_shell_and_users_of_processes() {
        let running = |uids: &[u32]| uids.iter().copied().collect::<BTreeSet<u32>>();
        assert_eq!(others(PASSWD, &running(&[0, 1, 1000]), 1000), ["bob", "carol"]);
        assert_eq!(others(PASSWD, &running(&[]), 0), ["alice", "bob", "carol"]);
        assert_eq!(
            others(PASSWD, &running(&[1002, 5000, 65_534]), 1001),
            ["alice", "service", "carol", "uid 5000"]
        );
        assert!(others("", &running(&[0, 33, 1000, 62_000]), 1000).is_empty());
    }

    #[test]
    fn a_note_counts_them_and_names_three() {
        let words = |count: usize| in_words(&["a", "b", "c", "d"].map(str::to_owned)[..count]);
        assert_eq!(words(0), None);
        assert_eq!(words(1).as_deref(), Some("another user (a)"));
        assert_eq!(words(3).as_deref(), Some("3 other users (a, b, c)"));
        assert_eq!(words(4).as_deref(), Some("4 other users (a, b, c, ...)"));
    }
}
