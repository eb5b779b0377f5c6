//! PDF from the very same SVG: paths stay paths, and text stays text in an embedded font that holds the letters that are used.
//!
//! A file is made of the figure alone: no date, no name of a machine, so that equal figures are equal files. It writes what figures are
//! made of (filled and stroked paths, opacity, text) and nothing else that SVG has.

use std::collections::BTreeMap;
use std::io::Write;

use pdf_writer::types::{CidFontType, FontFlags, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use resvg::usvg::{self, fontdb, tiny_skia_path};
use subsetter::GlyphRemapper;

use super::{Figure, FigureError};

/// Points a CSS pixel.
const POINTS: f32 = 0.75;

/// The figure as a PDF of one page of its size.
pub(super) fn page(figure: &Figure, tree: &usvg::Tree) -> Result<Vec<u8>, FigureError> {
    let mut page =
        Page { content: Content::new(), opacities: BTreeMap::new(), fonts: Vec::new(), db: tree.fontdb() };
    let (width, height) = (tree.size().width() * POINTS, tree.size().height() * POINTS);
    // SVG's y grows downwards.
    page.content.transform([POINTS, 0.0, 0.0, -POINTS, 0.0, height]);
    page.group(tree.root(), 1.0);
    page.finish(figure, (width, height)).map_err(|reason| FigureError::Draw {
        figure: figure.name.clone(),
        reason: format!("as PDF: {reason}"),
    })
}

/// A font's letters that a page shows.
struct Letters {
    id: fontdb::ID,
    glyphs: GlyphRemapper,
    /// By the subset's glyph: what it stands for.
    text: BTreeMap<u16, String>,
}

struct Page<'a> {
    content: Content,
    /// Thousandths of opacity, of fill and stroke alike, with the number of their state.
    opacities: BTreeMap<u16, usize>,
    fonts: Vec<Letters>,
    db: &'a fontdb::Database,
}

fn row(t: tiny_skia_path::Transform) -> [f32; 6] {
    [t.sx, t.ky, t.kx, t.sy, t.tx, t.ty]
}

/// The colour of a paint; figures have no gradients.
fn colour(paint: &usvg::Paint) -> Option<[f32; 3]> {
    match paint {
        usvg::Paint::Color(c) => Some([c.red, c.green, c.blue].map(|part| f32::from(part) / 255.0)),
        _ => None,
    }
}

impl Page<'_> {
    fn group(&mut self, group: &usvg::Group, opacity: f32) {
        let opacity = opacity * group.opacity().get();
        for node in group.children() {
            match node {
                usvg::Node::Group(inner) => self.group(inner, opacity),
                usvg::Node::Path(path) if path.is_visible() => self.path(path, opacity),
                usvg::Node::Text(text) => self.text(text, opacity),
                usvg::Node::Path(_) | usvg::Node::Image(_) => {}
            }
        }
    }

    fn opacity(&mut self, opacity: f32) {
        let thousandths = (opacity.clamp(0.0, 1.0) * 1000.0).round() as u16;
        let next = self.opacities.len();
        let number = *self.opacities.entry(thousandths).or_insert(next);
        self.content.set_parameters(Name(format!("G{number}").as_bytes()));
    }

    fn path(&mut self, path: &usvg::Path, opacity: f32) {
        let outline = |content: &mut Content| {
            use tiny_skia_path::PathSegment as Segment;
            let mut pen = tiny_skia_path::Point::zero();
            for segment in path.data().segments() {
                match segment {
                    Segment::MoveTo(p) => content.move_to(p.x, p.y),
                    Segment::LineTo(p) => content.line_to(p.x, p.y),
                    // PDF has cubic curves alone.
                    Segment::QuadTo(a, p) => {
                        let toward = |from: f32, control: f32| from + (control - from) * 2.0 / 3.0;
                        let (x1, y1) = (toward(pen.x, a.x), toward(pen.y, a.y));
                        content.cubic_to(x1, y1, toward(p.x, a.x), toward(p.y, a.y), p.x, p.y)
                    }
                    Segment::CubicTo(a, b, p) => content.cubic_to(a.x, a.y, b.x, b.y, p.x, p.y),
                    Segment::Close => content.close_path(),
                };
                if let Segment::MoveTo(p)
                | Segment::LineTo(p)
                | Segment::QuadTo(_, p)
                | Segment::CubicTo(_, _, p) = segment
                {
                    pen = p;
                }
            }
        };
        self.content.save_state();
        self.content.transform(row(path.abs_transform()));
        if let Some((fill, [r, g, b])) = path.fill().and_then(|fill| Some((fill, colour(fill.paint())?))) {
            self.opacity(opacity * fill.opacity().get());
            self.content.set_fill_rgb(r, g, b);
            outline(&mut self.content);
            match fill.rule() {
                usvg::FillRule::NonZero => self.content.fill_nonzero(),
                usvg::FillRule::EvenOdd => self.content.fill_even_odd(),
            };
        }
        if let Some((stroke, [r, g, b])) = path.stroke().and_then(|s| Some((s, colour(s.paint())?))) {
            self.opacity(opacity * stroke.opacity().get());
            self.content.set_stroke_rgb(r, g, b);
            self.content.set_line_width(stroke.width().get());
            outline(&mut self.content);
            self.content.stroke();
        }
        self.content.restore_state();
    }

    fn text(&mut self, text: &usvg::Text, opacity: f32) {
        for span in text.layouted().iter().filter(|span| span.visible) {
            let fill = span.fill.as_ref();
            let Some((fill, [r, g, b])) = fill.and_then(|fill| Some((fill, colour(fill.paint())?))) else {
                continue;
            };
            let opacity = opacity * fill.opacity().get();
            for glyphs in span.positioned_glyphs.chunk_by(|a, b| a.font == b.font) {
                self.content.save_state();
                self.opacity(opacity);
                self.content.set_fill_rgb(r, g, b);
                self.glyphs(text.abs_transform(), span.font_size.get(), glyphs);
                self.content.restore_state();
            }
        }
    }

    /// Glyphs of one font on one line, in one run, so that a reader finds the words whole.
    fn glyphs(
        &mut self,
        whole: tiny_skia_path::Transform,
        size: f32,
        glyphs: &[usvg::layout::PositionedGlyph],
    ) {
        let Some(first) = glyphs.first() else { return };
        let em = self
            .db
            .with_face_data(first.font, |data, index| {
                ttf_parser::Face::parse(data, index).ok().map(|face| f32::from(face.units_per_em()))
            })
            .flatten()
            .unwrap_or(1000.0);
        // The glyph's own transform scales from the font's units; here the font's size does.
        let unscaled = |glyph: &usvg::layout::PositionedGlyph| {
            whole.pre_concat(glyph.transform()).pre_scale(em / size, em / size)
        };
        let start = unscaled(first);
        let Some(back) = start.invert() else { return };
        let font = match self.fonts.iter().position(|letters| letters.id == first.font) {
            Some(at) => at,
            None => {
                let new = Letters { id: first.font, glyphs: GlyphRemapper::new(), text: BTreeMap::new() };
                self.fonts.push(new);
                self.fonts.len() - 1
            }
        };
        let advances: Vec<f32> = self.advances(first.font, glyphs, size / em);
        let letters = &mut self.fonts[font];
        self.content.begin_text();
        self.content.set_font(Name(format!("F{font}").as_bytes()), size);
        // A font's y grows upwards.
        self.content.set_text_matrix(row(start.pre_scale(1.0, -1.0)));
        let mut pen = 0.0;
        let mut shown = self.content.show_positioned();
        let mut items = shown.items();
        for (glyph, advance) in glyphs.iter().zip(advances) {
            let at = back.pre_concat(unscaled(glyph)).tx;
            let gap = (at - pen) / size * 1000.0;
            if gap.abs() > 0.5 {
                items.adjust(-gap);
            }
            let number = letters.glyphs.remap(number_of(glyph));
            letters.text.entry(number).or_insert_with(|| glyph.text.clone());
            items.show(Str(&number.to_be_bytes()));
            pen = at + advance;
        }
        items.finish();
        shown.finish();
        self.content.end_text();
    }

    fn advances(&self, id: fontdb::ID, glyphs: &[usvg::layout::PositionedGlyph], scale: f32) -> Vec<f32> {
        let of = |data: &[u8], index: u32| {
            let face = ttf_parser::Face::parse(data, index).ok();
            let advance = |glyph: &usvg::layout::PositionedGlyph| {
                let advance = face.as_ref()?.glyph_hor_advance(ttf_parser::GlyphId(number_of(glyph)))?;
                Some(f32::from(advance) * scale)
            };
            glyphs.iter().map(|glyph| advance(glyph).unwrap_or(0.0)).collect()
        };
        self.db.with_face_data(id, of).unwrap_or_else(|| vec![0.0; glyphs.len()])
    }

    fn finish(self, figure: &Figure, (width, height): (f32, f32)) -> Result<Vec<u8>, String> {
        let mut next = 0;
        let mut id = || {
            next += 1;
            Ref::new(next)
        };
        let (catalogue, pages, page, content, info) = (id(), id(), id(), id(), id());
        let fonts: Vec<[Ref; 5]> = self.fonts.iter().map(|_| [id(), id(), id(), id(), id()]).collect();
        let mut pdf = Pdf::new();
        pdf.catalog(catalogue).pages(pages);
        pdf.pages(pages).kids([page]).count(1);
        pdf.document_info(info).title(TextStr(&figure.title));
        let mut written = pdf.page(page);
        written.parent(pages).media_box(Rect::new(0.0, 0.0, width, height)).contents(content);
        let mut resources = written.resources();
        let mut states = resources.ext_g_states();
        for (thousandths, number) in &self.opacities {
            let alpha = f32::from(*thousandths) / 1000.0;
            let mut state = states
                .insert(Name(format!("G{number}").as_bytes()))
                .start::<pdf_writer::writers::ExtGraphicsState<'_>>();
            state.non_stroking_alpha(alpha).stroking_alpha(alpha);
        }
        states.finish();
        let mut known = resources.fonts();
        for (at, [font, ..]) in fonts.iter().enumerate() {
            known.pair(Name(format!("F{at}").as_bytes()), *font);
        }
        known.finish();
        resources.finish();
        written.finish();
        pdf.stream(content, &deflated(&self.content.finish())?).filter(Filter::FlateDecode);
        for (letters, ids) in self.fonts.iter().zip(fonts) {
            let embedded =
                self.db.with_face_data(letters.id, |data, index| embed(&mut pdf, letters, ids, data, index));
            embedded.ok_or_else(|| "its font is not there".to_owned())??;
        }
        Ok(pdf.finish())
    }
}

/// A glyph's number in its font; no font has more than 16 bits of them.
fn number_of(glyph: &usvg::layout::PositionedGlyph) -> u16 {
    u16::try_from(glyph.id.0).unwrap_or(0)
}

/// A font with the letters of a page: glyphs by number, their widths, and the text that they stand for.
fn embed(pdf: &mut Pdf, letters: &Letters, ids: [Ref; 5], data: &[u8], index: u32) -> Result<(), String> {
    let [font, cid, descriptor, to_unicode, file] = ids;
    let face = ttf_parser::Face::parse(data, index).map_err(|e| e.to_string())?;
    let scale = 1000.0 / f32::from(face.units_per_em());
    let family = face.names().into_iter().find(|name| name.name_id == ttf_parser::name_id::POST_SCRIPT_NAME);
    let family = family.and_then(|name| name.to_string()).unwrap_or_else(|| "Font".to_owned());
    let family: String = family.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    // Six capitals say that it is a subset.
    let name = format!("PALIMP+{family}");
    let name = Name(name.as_bytes());
    let system = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
    let subset = subsetter::subset(data, index, &letters.glyphs).map_err(|e| e.to_string())?;
    let cff = face.raw_face().table(ttf_parser::Tag::from_bytes(b"CFF ")).is_some();
    pdf.type0_font(font)
        .base_font(name)
        .encoding_predefined(Name(b"Identity-H"))
        .descendant_font(cid)
        .to_unicode(to_unicode);
    let mut described = pdf.cid_font(cid);
    described.subtype(if cff { CidFontType::Type0 } else { CidFontType::Type2 });
    described.base_font(name).system_info(system).font_descriptor(descriptor).default_width(0.0);
    if !cff {
        described.cid_to_gid_map_predefined(Name(b"Identity"));
    }
    let widths = letters
        .glyphs
        .remapped_gids()
        .map(|glyph| f32::from(face.glyph_hor_advance(ttf_parser::GlyphId(glyph)).unwrap_or(0)) * scale);
    described.widths().consecutive(0, widths);
    described.finish();
    let bounds = face.global_bounding_box();
    let bounds = [bounds.x_min, bounds.y_min, bounds.x_max, bounds.y_max].map(|edge| f32::from(edge) * scale);
    let mut told = pdf.font_descriptor(descriptor);
    told.name(name)
        .flags(FontFlags::NON_SYMBOLIC)
        .bbox(Rect::new(bounds[0], bounds[1], bounds[2], bounds[3]))
        .italic_angle(0.0)
        .ascent(f32::from(face.ascender()) * scale)
        .descent(f32::from(face.descender()) * scale)
        .cap_height(f32::from(face.capital_height().unwrap_or(face.ascender())) * scale)
        .stem_v(80.0);
    if cff {
        told.font_file3(file);
    } else {
        told.font_file2(file);
    }
    told.finish();
    let mut map = UnicodeCmap::new(Name(b"Custom"), system);
    for (glyph, text) in &letters.text {
        map.pair_with_multiple(*glyph, text.chars());
    }
    pdf.stream(to_unicode, &deflated(&map.finish())?).filter(Filter::FlateDecode);
    // A subset of a CFF font is a whole OpenType file.
    let length = i32::try_from(subset.len()).map_err(|e| e.to_string())?;
    let packed = deflated(&subset)?;
    let mut stream = pdf.stream(file, &packed);
    stream.filter(Filter::FlateDecode);
    if cff {
        stream.pair(Name(b"Subtype"), Name(b"OpenType"));
    } else {
        stream.pair(Name(b"Length1"), length);
    }
    stream.finish();
    Ok(())
}

fn deflated(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).and_then(|()| packed.finish()).map_err(|e| e.to_string())
}
