//! Matrix products and their data movement: `mma`, `ldmatrix`, `cp.async`, `wgmma`. Each is compared with the manual element by element, and
//! every misuse is planted and detected.

#[path = "../card/mod.rs"]
mod card;
mod copies;
mod fragments;
mod global;
mod group;
mod races;

use card::Card;

/// A module with kernel `test`, its `.u64` parameters and body. `%lane` is the thread index, `%p0` and so on are the parameters.
pub fn module(params: usize, body: &str) -> String {
    let list: Vec<String> = (0..params).map(|n| format!(".param .u64 p{n}")).collect();
    let loads: String = (0..params).map(|n| format!("ld.param.u64 %p{n}, [p{n}];\n")).collect();
    format!(
        ".version 7.0
.target sm_80
.address_size 64
.extern .shared .align 128 .b8 tile[];
.visible .entry test({})
{{
.reg .pred %q<4>;
.reg .b32 %lane, %r<40>;
.reg .f32 %f<8>;
.reg .b64 %p<9>, %d<9>;
{loads}
mov.u32 %lane, %tid.x;
{body}
ret;
}}
",
        list.join(", ")
    )
}

/// A card with the module's kernel `test` loaded.
pub fn card(ptx: &str) -> Card {
    let mut card = Card::new(0);
    card.load(ptx, &["test"]);
    card
}
