mod blocks;
mod cards;
#[cfg(unix)] // the folder consists of links
mod extend;
mod gguf;
pub mod gguf_bytes;
#[cfg(unix)] // caches of the hub consist of links
mod hub;
#[cfg(unix)]
mod hub_hostile;
#[cfg(unix)]
mod hub_server;
mod manifests;
mod plan;
#[cfg(unix)] // the replacement for python3 is a shell script
mod pulls;
mod safetensors;
mod what_fits;
