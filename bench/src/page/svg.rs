//! Plots as SVG: bars beside each other, and lines over a logarithmic axis. Nothing but text is needed for them.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const PLOT: f64 = 240.0;
const COLOURS: [&str; 6] = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568"];

/// Named values, one for each place on the axis below; some may be missing.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// What all plots have.
pub(crate) struct Plot<'a> {
    pub(crate) title: &'a str,
    /// What the values are, with their unit.
    pub(crate) unit: &'a str,
    /// Names of the places below.
    pub(crate) places: Vec<String>,
    pub(crate) series: Vec<Series>,
}

/// Text that may stand in XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with thousands and millions said shortly.
fn short(n: f64) -> String {
    let (n, unit) = match n {
        1e6.. => (n / 1e6, " M"),
        1e3.. => (n / 1e3, " k"),
        _ => (n, ""),
    };
    let text = if n >= 100.0 { format!("{n:.0}") } else { format!("{n:.2}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_up(n: f64) -> f64 {
    let power = 10f64.powf(n.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.iter().map(|s| s * power).find(|s| *s >= n * 0.999).unwrap_or(10.0 * power)
}

impl Plot<'_> {
    /// A group of bars at each place.
    pub(crate) fn bars(&self) -> String {
        self.draw(|out, at, of| {
            let group = of.step * 0.8;
            let width = group / self.series.len().max(1) as f64;
            for (i, series) in self.series.iter().enumerate() {
                let x = at - group / 2.0 + i as f64 * width;
                let Some(value) = series.values.get(of.place).copied().flatten() else { continue };
                let y = of.y(value);
                let (height, colour) = (TOP + PLOT - y, COLOURS[i % COLOURS.len()]);
                let tip = format!("{}, {}: {}", series.name, self.places[of.place], short(value));
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{}</title></rect>",
                    width - 1.0,
                    escape(&tip)
                );
            }
        })
    }

    /// A line for each series through its places.
    pub(crate) fn lines(&self) -> String {
        self.draw(|out, at, of| {
            for (i, series) in self.series.iter().enumerate() {
                let Some(value) = series.values.get(of.place).copied().flatten() else { continue };
                let (y, colour) = (of.y(value), COLOURS[i % COLOURS.len()]);
                let before = series.values[..of.place].iter().rposition(Option::is_some);
                if let Some((before, from)) = before.and_then(|b| Some((b, series.values[b]?))) {
                    let (x1, y1) = (at - (of.place - before) as f64 * of.step, of.y(from));
                    let _ = writeln!(
                        out,
                        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{at:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
                    );
                }
                let tip = format!("{}, {}: {}", series.name, self.places[of.place], short(value));
                let _ = writeln!(
                    out,
                    "<circle cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}</title></circle>",
                    escape(&tip)
                );
            }
        })
    }

    /// Frame, axis and legend; `mark` draws what is at each place.
    fn draw(&self, mark: impl Fn(&mut String, f64, &Place)) -> String {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten().copied());
        let top = round_up(values.fold(0.0, f64::max));
        let height = TOP + PLOT + 64.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{}</text>\n\
             <text x=\"{LEFT}\" y=\"36\" fill=\"#555\">{}</text>\n",
            escape(self.title),
            escape(self.unit)
        );
        for part in 0..=4 {
            let value = top * f64::from(part) / 4.0;
            let y = TOP + PLOT - PLOT * f64::from(part) / 4.0;
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                short(value)
            );
        }
        let step = (WIDTH - LEFT - RIGHT) / self.places.len().max(1) as f64;
        for (place, name) in self.places.iter().enumerate() {
            let at = LEFT + step * (place as f64 + 0.5);
            mark(&mut out, at, &Place { place, step, top });
            let y = TOP + PLOT + 18.0;
            let _ =
                writeln!(out, "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", escape(name));
        }
        let mut x = LEFT;
        for (i, series) in self.series.iter().enumerate() {
            let (y, colour) = (TOP + PLOT + 46.0, COLOURS[i % COLOURS.len()]);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{y}\">{}</text>",
                y - 9.0,
                x + 15.0,
                escape(&series.name)
            );
            x += 34.0 + 7.0 * series.name.chars().count() as f64;
        }
        out + "</svg>\n"
    }
}

/// Where something is drawn.
struct Place {
    place: usize,
    step: f64,
    /// Value at the upper end of the axis.
    top: f64,
}

impl Place {
    fn y(&self, value: f64) -> f64 {
        TOP + PLOT - PLOT * (value / self.top).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_shortly() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (950.0, "950"),
            (1500.0, "1.5 k"),
            (250_000.0, "250 k"),
            (2.5e6, "2.5 M"),
        ];
        for (n, text) in cases {
            assert_eq!(short(n), text);
        }
        for (n, up) in [(1.0, 1.0), (1.1, 2.0), (2.2, 2.5), (333.0, 500.0), (7e5, 1e6)] {
            assert!((round_up(n) / up - 1.0).abs() < 1e-9, "{n}");
        }
    }

    #[test]
    fn what_is_missing_is_not_drawn() {
        let series = |values| Series { name: "a<b".into(), values };
        let places = || vec!["1".into(), "2".into(), "3".into()];
        let plot = Plot {
            title: "t",
            unit: "u",
            places: places(),
            series: vec![series(vec![Some(1.0), None, Some(2.0)])],
        };
        let (bars, lines) = (plot.bars(), plot.lines());
        assert_eq!(bars.matches("<title>").count(), 2);
        assert_eq!((lines.matches("<circle").count(), lines.matches("stroke-width").count()), (2, 1));
        assert!(bars.contains("a&lt;b") && !bars.contains("a<b"));
    }
}
