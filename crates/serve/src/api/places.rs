//! Places of connections: which one is closed when more connect than fit.
//!
//! A connection is a stranger until one of its requests has passed the access check. Strangers and known clients have separate places, so
//! neither crowds out the other: clients with the key are served however many connections without one are open, and `/health` answers
//! however many known clients there are.
//!
//! No newcomer waits. If the strangers' places are taken, the oldest stranger is closed. An honest client sends its head at once and has
//! its answer, or is known, before as many others have come after it; half a head or half a body does not. This needs no address, so it
//! also protects clients on loopback, where an attacker has the address of everybody. If the known places are taken, the connection is
//! closed that has waited longest for its client: for the rest of a body, for an answer to be read, or for the next request. A connection
//! whose answer is being computed is never closed for another.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::Version;
use tokio::task::AbortHandle;

/// Connections that passed the access check.
pub const MOST_KNOWN: usize = 512;

/// Connections that have not passed it.
pub const MOST_STRANGERS: usize = 256;

/// Strangers with one address (IPv6: one /64 network), except on loopback.
pub const MOST_OF_ADDRESS: usize = 32;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Network(SocketAddr),
    /// A Unix socket has no address of the client.
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Network(address) => address.fmt(f),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

impl Peer {
    /// Address that [`MOST_OF_ADDRESS`] counts; `None` where all clients have the same.
    fn counted(self) -> Option<IpAddr> {
        let Peer::Network(address) = self else { return None };
        match address.ip().to_canonical() {
            ip if ip.is_loopback() => None,
            // One host usually has a whole /64.
            IpAddr::V6(ip) => Some(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()),
            ip => Some(ip),
        }
    }
}

/// Which side the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The client, for a request head.
    Head,
    /// The client, for the rest of a body.
    Body,
    /// The server, for the answer.
    Answer,
    /// The client, to read the answer.
    Unread,
}

#[derive(Debug, Clone, Copy)]
struct State {
    turn: Turn,
    since: Instant,
    /// HTTP version of the current request, `None` before the first.
    version: Option<Version>,
    /// Something was written, or should have been, since the request came.
    wrote: bool,
    /// The response body is complete, but perhaps not yet sent.
    ended: bool,
}

impl State {
    fn new() -> Self {
        State { turn: Turn::Head, since: Instant::now(), version: None, wrote: false, ended: false }
    }
}

/// A connection, in the extensions of its requests.
#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
    number: u64,
    state: Mutex<State>,
    places: Arc<Places>,
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        // Plain values stay valid after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the connection to the known ones. False if none of their places can be freed.
    pub fn known(&self) -> bool {
        self.places.known(self.number)
    }

    pub fn turn(&self) -> Turn {
        self.state().turn
    }

    /// A request head has come.
    pub fn begun(&self) -> bool {
        self.state().version.is_some()
    }

    /// Version of the request, as long as nothing was sent in reply.
    pub fn silent(&self) -> Option<Version> {
        let state = self.state();
        state.version.filter(|_| !state.wrote)
    }

    fn waits_since(&self) -> Option<Instant> {
        let state = self.state();
        (state.turn != Turn::Answer).then_some(state.since)
    }

    /// A head has come; `whole` if no body follows.
    pub fn begin(&self, version: Version, whole: bool) {
        let turn = if whole { Turn::Answer } else { Turn::Body };
        *self.state() = State { turn, version: Some(version), ..State::new() };
    }

    /// The body has come, or nobody reads it.
    pub fn received(&self) {
        let mut state = self.state();
        if state.turn == Turn::Body {
            // What was sent until now is no answer: `100 Continue` asks for the body.
            (state.turn, state.since, state.wrote) = (Turn::Answer, Instant::now(), false);
        }
    }

    /// Result of a write: false if the client must read first.
    pub fn wrote(&self, taken: bool) {
        let mut state = self.state();
        state.wrote = true;
        match (taken, state.turn) {
            (true, Turn::Unread) => (state.turn, state.since) = (Turn::Answer, Instant::now()),
            (false, Turn::Answer) => (state.turn, state.since) = (Turn::Unread, Instant::now()),
            _ => {}
        }
    }

    pub fn ended(&self) {
        self.state().ended = true;
    }

    /// Everything written so far is in the socket. True if that is the end of an answer.
    pub fn flushed(&self) -> bool {
        let mut state = self.state();
        let ended = std::mem::take(&mut state.ended);
        if ended {
            (state.turn, state.since) = (Turn::Head, Instant::now());
        }
        ended
    }
}

#[derive(Debug)]
struct Place {
    connection: Arc<Connection>,
    known: bool,
    task: AbortHandle,
}

/// All open connections, by age.
#[derive(Debug, Default)]
pub struct Places {
    open: Mutex<BTreeMap<u64, Place>>,
    next: AtomicU64,
}

impl Places {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Place>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn connection(self: &Arc<Self>, peer: Peer) -> Arc<Connection> {
        Arc::new(Connection {
            peer,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State::new()),
            places: Arc::clone(self),
        })
    }

    /// Gives a newcomer a place, that of an older stranger if need be. `task` serves the connection.
    pub fn seat(&self, connection: Arc<Connection>, task: AbortHandle) {
        let mut open = self.open();
        let address = connection.peer.counted();
        let same =
            |place: &Place| !place.known && address.is_some() && place.connection.peer.counted() == address;
        if open.values().filter(|place| same(place)).count() >= MOST_OF_ADDRESS {
            close_oldest(&mut open, same);
        } else if open.values().filter(|place| !place.known).count() >= MOST_STRANGERS {
            close_oldest(&mut open, |place| !place.known);
        }
        open.insert(connection.number, Place { connection, known: false, task });
    }

    fn known(&self, number: u64) -> bool {
        let mut open = self.open();
        // One that is no longer listed is being closed.
        if open.get(&number).is_none_or(|place| place.known) {
            return true;
        }
        if open.values().filter(|place| place.known).count() >= MOST_KNOWN && !close_waiting(&mut open) {
            return false;
        }
        if let Some(place) = open.get_mut(&number) {
            place.known = true;
        }
        true
    }

    /// Closes a connection whose file descriptor is needed: the oldest stranger if strangers have more than their share of the places, or
    /// else the known client that is waited for longest. False if there is none. A single stranger stays: it may be the newcomer.
    pub fn close_one(&self) -> bool {
        let mut open = self.open();
        let strangers = open.values().filter(|place| !place.known).count();
        let crowded = strangers * MOST_KNOWN > (open.len() - strangers) * MOST_STRANGERS;
        let close_stranger =
            |open: &mut BTreeMap<_, _>| strangers > 1 && close_oldest(open, |place| !place.known);
        (crowded && close_stranger(&mut open)) || close_waiting(&mut open) || close_stranger(&mut open)
    }

    /// To be called when the connection is closed.
    pub fn leave(&self, connection: &Connection) {
        self.open().remove(&connection.number);
    }
}

/// False if there is none.
fn close_oldest(open: &mut BTreeMap<u64, Place>, which: impl Fn(&Place) -> bool) -> bool {
    let oldest = open.iter().find(|(_, place)| which(place)).map(|(number, _)| *number);
    let closed = oldest.and_then(|number| open.remove(&number));
    closed.inspect(|place| place.task.abort()).is_some()
}

/// Closes the known client that is waited for longest. False if all are being answered.
fn close_waiting(open: &mut BTreeMap<u64, Place>) -> bool {
    let known = open.iter().filter(|(_, place)| place.known);
    let waiting = known.filter_map(|(number, place)| Some((place.connection.waits_since()?, *number)));
    let Some((_, longest)) = waiting.min() else { return false };
    close_oldest(open, |place| place.connection.number == longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections of these peers, seated in order, each with a task that never ends.
    async fn seated(places: &Arc<Places>, peers: impl Iterator<Item = Peer>) -> Vec<Arc<Connection>> {
        let seated: Vec<Arc<Connection>> = peers.map(|peer| places.connection(peer)).collect();
        for connection in &seated {
            let task = tokio::spawn(std::future::pending::<()>());
            places.seat(Arc::clone(connection), task.abort_handle());
        }
        seated
    }

    fn peers(address: &str, count: usize) -> impl Iterator<Item = Peer> {
        let address: IpAddr = address.parse().unwrap();
        (0..count).map(move |_| Peer::Network(SocketAddr::new(address, 4711)))
    }

    fn open(places: &Places, connection: &Connection) -> bool {
        places.open().contains_key(&connection.number)
    }

    fn with_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    #[test]
    fn newcomers_close_the_oldest_strangers_and_no_known_client() {
        with_runtime(async {
            let places = Arc::new(Places::default());
            let known = seated(&places, peers("127.0.0.1", 1)).await.remove(0);
            assert!(known.known() && known.known());
            let first = seated(&places, peers("127.0.0.1", MOST_STRANGERS)).await;
            assert!(first.iter().all(|one| open(&places, one)));
            let second = seated(&places, peers("::1", 3).chain([Peer::Unix])).await;
            assert!(first[..4].iter().all(|one| !open(&places, one)));
            assert!(first[4..].iter().chain(&second).chain([&known]).all(|one| open(&places, one)));
            assert!(places.close_one() && !open(&places, &first[4]) && open(&places, &first[5]));
            first.iter().chain(&second).for_each(|one| places.leave(one));
            let newcomer = seated(&places, peers("127.0.0.1", 1)).await.remove(0);
            known.begin(Version::HTTP_11, true);
            assert!(!places.close_one() && open(&places, &known), "it is being answered");
            known.ended();
            known.flushed();
            assert!(places.close_one() && !open(&places, &known) && open(&places, &newcomer));
        });
    }

    #[test]
    fn strangers_of_one_address_close_each_other_alone() {
        with_runtime(async {
            let places = Arc::new(Places::default());
            let other = seated(&places, peers("10.0.0.2", 1)).await;
            let own = seated(&places, peers("10.0.0.1", MOST_OF_ADDRESS)).await;
            seated(&places, peers("::ffff:10.0.0.1", 2)).await;
            assert!(open(&places, &other[0]));
            assert!(own[..2].iter().all(|one| !open(&places, one)) && open(&places, &own[2]));
            // An IPv6 host has as many addresses as it likes.
            let first = seated(&places, peers("2001:db8::1", 1)).await;
            let next = seated(&places, peers("2001:db8::2", MOST_OF_ADDRESS)).await;
            assert!(!open(&places, &first[0]) && open(&places, &next[0]));
            let elsewhere = seated(&places, peers("2001:db8:0:1::1", 1)).await;
            assert!(open(&places, &next[0]) && open(&places, &elsewhere[0]));
        });
    }

    #[test]
    fn known_places_go_to_clients_that_are_not_waited_for() {
        with_runtime(async {
            let places = Arc::new(Places::default());
            let known = seated(&places, peers("127.0.0.1", MOST_STRANGERS)).await;
            assert!(known.iter().all(|one| one.known()));
            let rest = seated(&places, peers("127.0.0.1", MOST_KNOWN - MOST_STRANGERS)).await;
            assert!(rest.iter().all(|one| one.known()));
            let late = seated(&places, peers("127.0.0.1", 3)).await;
            for one in known.iter().chain(&rest).chain(&late) {
                one.begin(Version::HTTP_11, true);
            }
            assert!(!late[0].known(), "all are being answered");
            // One reads nothing, one has read everything, one sends half a body.
            known[5].wrote(false);
            known[6].ended();
            known[6].flushed();
            known[7].begin(Version::HTTP_11, false);
            assert_eq!([5, 6, 7].map(|at| known[at].turn()), [Turn::Unread, Turn::Head, Turn::Body]);
            assert!(late[0].known() && !open(&places, &known[5]) && open(&places, &known[6]));
            assert!(late[1].known() && !open(&places, &known[6]) && open(&places, &known[7]));
            known[7].received();
            assert!(!late[2].known() && open(&places, &late[2]));
        });
    }

    #[test]
    fn a_connection_waits_for_its_client_or_for_the_answer() {
        let one = Arc::new(Places::default()).connection(Peer::Unix);
        assert!(!one.begun() && one.waits_since().is_some());
        one.begin(Version::HTTP_11, false);
        one.wrote(true);
        assert_eq!(one.turn(), Turn::Body);
        one.received();
        assert!(one.begun() && one.waits_since().is_none());
        one.wrote(false);
        assert!(one.waits_since().is_some());
        one.wrote(true);
        one.flushed();
        assert_eq!(one.turn(), Turn::Answer, "more of the answer follows");
        one.ended();
        assert_eq!(one.turn(), Turn::Answer, "it is not yet sent");
        one.flushed();
        assert_eq!(one.turn(), Turn::Head);
        assert_eq!(
            (one.peer.to_string(), Peer::Network(([127, 0, 0, 1], 4711).into()).to_string()),
            ("unix".into(), "127.0.0.1:4711".into())
        );
    }
}
