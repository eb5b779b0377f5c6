//! Ends an adapter with all its descendants when palimpsest ends, however it ends.
//!
//! An adapter runs below a supervisor: palimpsest's own command, started again as `supervise FD PROGRAM ARGUMENTS...`. FD is one end of a
//! pair of sockets, the lifeline, whose other end palimpsest alone holds. The kernel closes that end with the process, also after SIGKILL
//! or an exit that runs no destructors. At its end, or when the adapter exits, the supervisor kills what is left and exits. On Linux it is
//! the subreaper of its descendants, which stay below it in sessions of their own, too; elsewhere it kills the adapter's process group. It
//! passes standard input, output and error on and reads none of them. Without a known command (the library in another program) an adapter
//! is only a process group, killed by its owner.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;

static OWN_COMMAND: OnceLock<Vec<OsString>> = OnceLock::new();

/// Makes palimpsest's own command known: the program, and words before its arguments. The first call counts.
pub fn set_own_command(words: Vec<OsString>) {
    let _ = OWN_COMMAND.set(words);
}

/// Palimpsest's own command, without arguments.
pub fn own_command() -> Option<Command> {
    let (program, words) = OWN_COMMAND.get()?.split_first()?;
    let mut command = Command::new(program);
    command.args(words);
    Some(command)
}

/// A running adapter: the supervisor's process, or the adapter's own. Ended by drop.
pub(super) struct Supervised {
    pub child: Child,
    #[cfg(unix)]
    lifeline: Option<std::os::unix::net::UnixStream>,
}

fn cannot_start(program: &OsStr, error: &io::Error) -> String {
    format!("cannot start `{}`: {error}; is it installed, and the path right?", program.display())
}

#[cfg(unix)]
pub use unix::supervised;

#[cfg(not(unix))]
pub fn supervised(_: &[OsString]) -> Option<u8> {
    None
}

#[cfg(not(unix))]
impl Supervised {
    pub fn spawn(
        program: &OsStr,
        arguments: &[OsString],
        set_up: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        set_up(command.args(arguments));
        let child = command.spawn().map_err(|error| cannot_start(program, &error))?;
        Ok(Supervised { child })
    }
}

#[cfg(not(unix))]
impl Drop for Supervised {
    fn drop(&mut self) {
        // An error means the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
mod unix {
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::io::{self, ErrorKind, Read};
    use std::os::fd::{AsRawFd, FromRawFd, RawFd};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
    use std::process::{Command, ExitStatus};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Supervised, cannot_start, own_command};
    use crate::progress::note;

    /// First word of the supervisor's command line.
    const SUPERVISE: &str = "supervise";

    /// Exit code for a program that does not start, as in shells.
    const NOT_STARTED: u8 = 127;

    /// Most time to kill descendants. A process that waits for a device dies later, with the signal pending.
    const KILLING: Duration = Duration::from_secs(10);

    const POLL: Duration = Duration::from_millis(2);

    /// Time between two looks at the supervisor's parent.
    const PARENT_CHECK: Duration = Duration::from_secs(1);

    impl Supervised {
        /// `set_up` sets environment and standard streams. The error names the program that did not start.
        pub fn spawn(
            program: &OsStr,
            arguments: &[OsString],
            set_up: impl FnOnce(&mut Command),
        ) -> Result<Self, String> {
            let (mut command, lifeline) = match own_command() {
                Some(mut command) => {
                    // Not a pipe: any process of the user could open its write end again through /proc, and keep it open.
                    let (theirs, lifeline) =
                        UnixStream::pair().map_err(|error| cannot_start(program, &error))?;
                    command.arg(SUPERVISE).arg(theirs.as_raw_fd().to_string()).arg(program);
                    let inherit = move || {
                        // SAFETY: fcntl changes a flag of a descriptor that this closure owns.
                        match unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } {
                            -1 => Err(io::Error::last_os_error()),
                            _ => Ok(()),
                        }
                    };
                    // SAFETY: after the fork the closure makes one async-signal-safe call and allocates nothing.
                    unsafe { command.pre_exec(inherit) };
                    (command, Some(lifeline))
                }
                None => (Command::new(program), None),
            };
            // Away from the terminal's group, which gets Ctrl-C.
            set_up(command.args(arguments).process_group(0));
            let child = command.spawn().map_err(|error| cannot_start(command.get_program(), &error))?;
            Ok(Supervised { child, lifeline })
        }
    }

    impl Drop for Supervised {
        fn drop(&mut self) {
            match self.lifeline.take() {
                Some(lifeline) => {
                    drop(lifeline);
                    let begun = Instant::now();
                    while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < 2 * KILLING {
                        thread::sleep(POLL);
                    }
                }
                // The child is not waited for yet, or was found ended just now, so its group is still its own.
                None => kill_group(self.child.id()),
            }
            // An error means the process has already exited.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Runs the supervisor if the arguments (program name first) are those of one; returns its exit code. No other thread may run.
    pub fn supervised(args: &[OsString]) -> Option<u8> {
        match args {
            [_, word, lifeline, program, arguments @ ..] if word == SUPERVISE => {
                let ended = supervise(lifeline, program, arguments);
                Some(ended.unwrap_or_else(|error| {
                    note(format_args!("the supervisor failed: {error}"));
                    1
                }))
            }
            _ => None,
        }
    }

    fn supervise(lifeline: &OsStr, program: &OsStr, arguments: &[OsString]) -> io::Result<u8> {
        let parent = parent_id();
        let lifeline = inherited(lifeline)?;
        lifeline.set_read_timeout(Some(PARENT_CHECK))?;
        adopt_orphans()?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        die_with_parent(&mut command);
        let adapter = match command.spawn() {
            Ok(child) => child.id(),
            Err(error) => {
                note(cannot_start(program, &error));
                return Ok(NOT_STARTED);
            }
        };
        leave_streams().inspect_err(|_| kill_all(adapter))?;
        let watch = move || {
            wait_for_end(lifeline, parent);
            kill_all(adapter);
            std::process::exit(1);
        };
        let watching = thread::Builder::new().spawn(watch);
        let status = watching.is_ok().then(|| wait_for(adapter)).flatten();
        kill_all(adapter);
        // A signal as in shells.
        let by_signal = |status: ExitStatus| status.signal().map(|signal| 128 + signal);
        let code = status.and_then(|status| status.code().or_else(|| by_signal(status)));
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    /// Takes over the lifeline, and closes it in programs that are started from here.
    fn inherited(number: &OsStr) -> io::Result<UnixStream> {
        let number = number.to_str().and_then(|number| number.parse::<RawFd>().ok());
        let number = number.ok_or(ErrorKind::InvalidInput)?;
        // SAFETY: fcntl changes a flag of a descriptor. A number that is none is an error.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and palimpsest passed it on for this use alone.
        Ok(unsafe { UnixStream::from_raw_fd(number) })
    }

    /// Closes the adapter's standard input and output here, so that palimpsest notices when the adapter closes them.
    fn leave_streams() -> io::Result<()> {
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
            // SAFETY: dup2 replaces a standard stream of this process, which no value owns.
            if unsafe { libc::dup2(nothing.as_raw_fd(), stream) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Waits for palimpsest's end. The parent is looked at, too: another process may have got hold of the other end of the lifeline.
    fn wait_for_end(mut lifeline: UnixStream, parent: u32) {
        loop {
            match lifeline.read(&mut [0]) {
                Err(error) if is_passing(&error) && parent_id() == parent => {}
                // Nothing is written to the lifeline; an error counts as its end.
                _ => return,
            }
        }
    }

    fn is_passing(error: &io::Error) -> bool {
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
    }

    /// Reaps children, adopted ones too, until the adapter's exit. `None` if the watching thread reaped it.
    fn wait_for(adapter: u32) -> Option<ExitStatus> {
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes to `status` alone, which outlives the call.
            match unsafe { libc::waitpid(-1, &raw mut status, 0) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return None,
                pid if pid.unsigned_abs() == adapter => return Some(ExitStatus::from_raw(status)),
                _ => {}
            }
        }
    }

    fn kill(pid: libc::pid_t) {
        // SAFETY: kill shares no memory. An error means that the process has ended or belongs to another user.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }

    fn kill_group(leader: u32) {
        if let Ok(group) = libc::pid_t::try_from(leader) {
            kill(-group);
        }
    }

    #[cfg(not(target_os = "linux"))]
    use elsewhere::{adopt_orphans, die_with_parent, kill_all};
    #[cfg(target_os = "linux")]
    use linux::{adopt_orphans, die_with_parent, kill_all};

    #[cfg(not(target_os = "linux"))]
    mod elsewhere {
        pub(super) fn adopt_orphans() -> std::io::Result<()> {
            Ok(())
        }

        pub(super) fn die_with_parent(_: &mut std::process::Command) {}

        pub(super) fn kill_all(adapter: u32) {
            super::kill_group(adapter);
        }
    }

    #[cfg(target_os = "linux")]
    mod linux {
        use std::io;
        use std::os::unix::process::{CommandExt, parent_id};
        use std::process::Command;
        use std::thread;
        use std::time::Instant;

        use super::{KILLING, POLL, kill};

        pub(super) fn adopt_orphans() -> io::Result<()> {
            const ON: libc::c_ulong = 1;
            // SAFETY: prctl sets an attribute of this process; no pointer is passed.
            match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, ON) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        }

        /// Kills the child if the supervisor is killed itself. The signal follows the spawning thread, here the main one.
        pub(super) fn die_with_parent(command: &mut Command) {
            const SIGNAL: libc::c_ulong = libc::SIGKILL as libc::c_ulong;
            let parent = std::process::id();
            let set = move || {
                // SAFETY: prctl sets an attribute of this process; no pointer is passed.
                if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, SIGNAL) } == -1 {
                    return Err(io::Error::last_os_error());
                }
                // A parent that ended before the call sends nothing.
                if parent_id() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
            };
            // SAFETY: after the fork the closure makes async-signal-safe calls and allocates nothing.
            unsafe { command.pre_exec(set) };
        }

        /// Kills all descendants until none is left: orphans become children of this process, so none escapes a later round.
        pub(super) fn kill_all(_: u32) {
            let begun = Instant::now();
            while begun.elapsed() < KILLING {
                // SAFETY: waitpid takes no status here.
                while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
                let left = descendants();
                if left.is_empty() {
                    return;
                }
                left.into_iter().for_each(kill);
                thread::sleep(POLL);
            }
        }

        fn descendants() -> Vec<libc::pid_t> {
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let processes: Vec<(libc::pid_t, libc::pid_t)> = entries
                .filter_map(|entry| {
                    let pid = entry.file_name().to_str()?.parse().ok()?;
                    let stat = std::fs::read(entry.path().join("stat")).ok()?;
                    let stat = String::from_utf8_lossy(&stat);
                    // `pid (name) state parent ...`; the name may hold parentheses.
                    let (_, fields) = stat.rsplit_once(')')?;
                    Some((pid, fields.split_whitespace().nth(1)?.parse().ok()?))
                })
                .collect();
            let mut found: Vec<libc::pid_t> = std::process::id().try_into().into_iter().collect();
            let mut at = 0;
            while let Some(&parent) = found.get(at) {
                let children = processes.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid);
                let new: Vec<_> = children.filter(|pid| !found.contains(pid)).collect();
                found.extend(new);
                at += 1;
            }
            found.split_off(1.min(found.len()))
        }
    }
}
