//! PDF of a figure's shapes: vector paths, and text with an embedded subset font.
//!
//! Output is deterministic: no date, no host name. Supports filled and stroked paths, opacity and text.

use std::collections::BTreeMap;
use std::io::Write;

use pdf_writer::types::{CidFontType, FontFlags, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use subsetter::GlyphRemapper;
use tiny_skia::{Path, PathSegment, Transform};
use ttf_parser::{Face, GlyphId};

use super::drawing::{Drawing, Form, Pen};
use super::style::{Colour, Ink, UNIT};
use super::typeface::{Fonts, Glyph, Line};

/// Points per CSS pixel.
const POINTS: f32 = 0.75;

pub(super) fn page(title: &str, drawing: &Drawing, fonts: &Fonts<'_>) -> Result<Vec<u8>, String> {
    let mut page = Page { content: Content::new(), opacities: BTreeMap::new(), used: Vec::new(), fonts };
    let (width, height) = (drawing.size.0 as f32 * POINTS, drawing.size.1 as f32 * POINTS);
    // SVG's y axis points down.
    let scale = width / drawing.view.0 as f32;
    page.content.transform([scale, 0.0, 0.0, -scale, 0.0, height]);
    for shape in &drawing.shapes {
        page.content.save_state();
        page.ink(shape.ink, shape.pen);
        match &shape.form {
            Form::Words(words) => page.line(&fonts.line(words)),
            form => form.path().into_iter().for_each(|path| page.path(&path, shape.pen)),
        }
        page.content.restore_state();
    }
    page.finish(title, (width, height))
}

struct Letters {
    font: usize,
    glyphs: GlyphRemapper,
    text: BTreeMap<u16, char>,
}

struct Page<'a> {
    content: Content,
    /// Opacity in thousandths to graphics state number.
    opacities: BTreeMap<u16, usize>,
    used: Vec<Letters>,
    fonts: &'a Fonts<'a>,
}

fn row(t: Transform) -> [f32; 6] {
    [t.sx, t.ky, t.kx, t.sy, t.tx, t.ty]
}

impl Page<'_> {
    fn ink(&mut self, Ink { colour: Colour(r, g, b), opacity }: Ink, pen: Option<Pen>) {
        let [r, g, b] = [r, g, b].map(|part| f32::from(part) / 255.0);
        let thousandths = (opacity.clamp(0.0, 1.0) * 1000.0).round() as u16;
        let next = self.opacities.len();
        let number = *self.opacities.entry(thousandths).or_insert(next);
        self.content.set_parameters(Name(format!("G{number}").as_bytes()));
        let Some(Pen { width, dash }) = pen else {
            self.content.set_fill_rgb(r, g, b);
            return;
        };
        self.content.set_stroke_rgb(r, g, b).set_line_width(width as f32);
        if let Some((dash, space)) = dash {
            self.content.set_dash_pattern([dash, space].map(|part| (part * UNIT) as f32), 0.0);
        }
    }

    fn path(&mut self, path: &Path, pen: Option<Pen>) {
        for segment in path.segments() {
            let content = &mut self.content;
            match segment {
                PathSegment::MoveTo(p) => content.move_to(p.x, p.y),
                PathSegment::LineTo(p) => content.line_to(p.x, p.y),
                PathSegment::CubicTo(a, b, p) => content.cubic_to(a.x, a.y, b.x, b.y, p.x, p.y),
                // Not produced: circles are cubic.
                PathSegment::QuadTo(a, p) => content.cubic_to(a.x, a.y, a.x, a.y, p.x, p.y),
                PathSegment::Close => content.close_path(),
            };
        }
        match pen {
            None => self.content.fill_nonzero(),
            Some(_) => self.content.stroke(),
        };
    }

    fn line(&mut self, line: &Line) {
        for glyphs in line.glyphs.chunk_by(|a, b| a.font == b.font) {
            self.glyphs(line, glyphs);
        }
    }

    /// Glyphs of one font as one run, so that text search finds whole words.
    fn glyphs(&mut self, line: &Line, glyphs: &[Glyph]) {
        let Some((first, (_, face))) =
            glyphs.first().and_then(|first| Some((first, self.fonts.get(first.font)?)))
        else {
            return;
        };
        let size = line.size;
        let at = self.used.iter().position(|letters| letters.font == first.font).unwrap_or_else(|| {
            let text = BTreeMap::new();
            self.used.push(Letters { font: first.font, glyphs: GlyphRemapper::new(), text });
            self.used.len() - 1
        });
        let letters = &mut self.used[at];
        self.content.begin_text();
        self.content.set_font(Name(format!("F{at}").as_bytes()), size);
        // A font's y axis points up.
        let start = line.origin.pre_translate(first.x, 0.0).pre_scale(1.0, -1.0);
        self.content.set_text_matrix(row(start));
        let mut pen = first.x;
        let mut shown = self.content.show_positioned();
        let mut items = shown.items();
        for glyph in glyphs {
            let gap = (glyph.x - pen) / size * 1000.0;
            if gap.abs() > 0.5 {
                items.adjust(-gap);
            }
            let number = letters.glyphs.remap(glyph.id.0);
            letters.text.entry(number).or_insert(glyph.letter);
            items.show(Str(&number.to_be_bytes()));
            let advance = face.glyph_hor_advance(glyph.id).unwrap_or(0);
            pen = glyph.x + f32::from(advance) * size / f32::from(face.units_per_em());
        }
        items.finish();
        shown.finish();
        self.content.end_text();
    }

    fn finish(self, title: &str, (width, height): (f32, f32)) -> Result<Vec<u8>, String> {
        let mut next = 0;
        let mut id = || {
            next += 1;
            Ref::new(next)
        };
        let (catalogue, pages, page, content, info) = (id(), id(), id(), id(), id());
        let fonts: Vec<[Ref; 5]> = self.used.iter().map(|_| [id(), id(), id(), id(), id()]).collect();
        let mut pdf = Pdf::new();
        pdf.catalog(catalogue).pages(pages);
        pdf.pages(pages).kids([page]).count(1);
        pdf.document_info(info).title(TextStr(title));
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
        for (letters, ids) in self.used.iter().zip(fonts) {
            let (file, face) =
                self.fonts.get(letters.font).ok_or_else(|| "its font is not there".to_owned())?;
            embed(&mut pdf, letters, ids, file, face)?;
        }
        Ok(pdf.finish())
    }
}

/// Embeds a subset font with widths and a Unicode map.
fn embed(
    pdf: &mut Pdf,
    letters: &Letters,
    ids: [Ref; 5],
    file: &[u8],
    face: &Face<'_>,
) -> Result<(), String> {
    let [font, cid, descriptor, to_unicode, embedded] = ids;
    let scale = 1000.0 / f32::from(face.units_per_em());
    let family = face.names().into_iter().find(|name| name.name_id == ttf_parser::name_id::POST_SCRIPT_NAME);
    let family = family.and_then(|name| name.to_string()).unwrap_or_else(|| "Font".to_owned());
    let family: String = family.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    // Six capitals mark a subset.
    let name = format!("PALIMP+{family}");
    let name = Name(name.as_bytes());
    let system = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
    let subset = subsetter::subset(file, 0, &letters.glyphs).map_err(|e| e.to_string())?;
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
        .map(|glyph| f32::from(face.glyph_hor_advance(GlyphId(glyph)).unwrap_or(0)) * scale);
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
        told.font_file3(embedded);
    } else {
        told.font_file2(embedded);
    }
    told.finish();
    let mut map = UnicodeCmap::new(Name(b"Custom"), system);
    for (glyph, text) in &letters.text {
        map.pair(*glyph, *text);
    }
    pdf.stream(to_unicode, &deflated(&map.finish())?).filter(Filter::FlateDecode);
    // A CFF subset is a whole OpenType file.
    let length = i32::try_from(subset.len()).map_err(|error| error.to_string())?;
    let packed = deflated(&subset)?;
    let mut stream = pdf.stream(embedded, &packed);
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
    packed.write_all(bytes).and_then(|()| packed.finish()).map_err(|error| error.to_string())
}
