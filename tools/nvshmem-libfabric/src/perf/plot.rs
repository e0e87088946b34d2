//! Plots as SVG, to be put into a page.

use std::error::Error;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

/// Pixels.
const SIZE: (u32, u32) = (860, 420);

/// Colours that people who see few of them can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// What the horizontal axis has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Across {
    /// Bytes, doubling.
    Bytes,
    /// Counts, from 1 on.
    Count,
}

/// What a plot says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plot<'a> {
    pub(super) across: Across,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// The vertical axis shows factors: ten times as much is as far from one as from ten to a
    /// hundred.
    pub(super) factors: bool,
    pub(super) curves: &'a [Curve],
}

impl Plot<'_> {
    /// The picture.
    ///
    /// # Errors
    /// There is nothing to show.
    pub(super) fn svg(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let bounds = |of: fn(&(f64, f64)) -> f64| -> Option<(f64, f64)> {
            let values = || points().map(of).filter(|value| value.is_finite());
            Some((values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?))
        };
        let ((left, right), (low, high)) =
            bounds(|point| point.0).zip(bounds(|point| point.1)).ok_or("a plot has no points")?;
        let (left, right) = match self.across {
            Across::Bytes => (left.log2(), right.log2().max(left.log2() + 1.0)),
            Across::Count => (0.5, right + 0.5),
        };
        let mut svg = String::new();
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root);
        chart.margin(12).margin_right(24).x_label_area_size(46).y_label_area_size(72);
        if self.factors {
            let y = (low.max(1e-9) / 1.5..high * 2.0).log_scale();
            self.draw(chart.build_cartesian_2d(left..right, y)?)?;
        } else {
            self.draw(chart.build_cartesian_2d(left..right, 0.0..high * 1.25)?)?;
        }
        root.present()?;
        drop(root);
        Ok(svg)
    }

    fn draw<'a, Y>(
        &self,
        mut chart: ChartContext<
            'a,
            SVGBackend<'a>,
            Cartesian2d<plotters::coord::types::RangedCoordf64, Y>,
        >,
    ) -> Result<(), Box<dyn Error + Send + Sync>>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let places = self.places();
        chart
            .configure_mesh()
            .x_labels(match self.across {
                Across::Bytes => places.len().clamp(2, 12),
                // Each of them.
                Across::Count => places.last().map_or(2, |most| *most as usize + 1).min(33),
            })
            .x_label_formatter(&|at| self.place(*at))
            .y_label_formatter(&|value| number(*value))
            .x_desc(self.x)
            .y_desc(self.y)
            .light_line_style(RGBColor(0xf2, 0xf2, 0xf2))
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .draw()?;
        for (at, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let across = |x: f64| if self.across == Across::Bytes { x.log2() } else { x };
            let points: Vec<(f64, f64)> =
                curve.points.iter().map(|(x, y)| (across(*x), *y)).collect();
            let line = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(points.clone(), line))?.label(&curve.name).legend(
                move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)),
            );
            chart
                .draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(0xcc, 0xcc, 0xcc))
            .label_font(("sans-serif", 14))
            .draw()?;
        Ok(())
    }

    /// Where there are points.
    fn places(&self) -> Vec<u64> {
        let mut all: Vec<u64> =
            self.curves.iter().flat_map(|c| &c.points).map(|p| p.0 as u64).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What stands below a place of the horizontal axis.
    fn place(&self, at: f64) -> String {
        let whole = (at - at.round()).abs() < 1e-6;
        match self.across {
            _ if !whole => String::new(),
            Across::Bytes => bytes(at.exp2().round() as u64),
            Across::Count => format!("{at:.0}"),
        }
    }
}

/// Bytes in the largest unit that they are a multiple of.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A number with few digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => String::from("0"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 1.0 => trimmed(format!("{value:.2}")),
        size if size >= 0.01 => trimmed(format!("{value:.3}")),
        size if size >= 1e-5 => trimmed(format!("{value:.6}")),
        _ => format!("{value:.1e}"),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_axes_its_names_and_a_line_for_each_curve() {
        let curve = |name: &str, factor: f64| Curve {
            name: name.to_owned(),
            points: (3..23)
                .map(|power| (f64::from(1 << power), f64::from(power) * factor))
                .collect(),
        };
        let curves = [curve("first & <last>", 1.0), curve("second", 10.0)];
        for factors in [false, true] {
            let plot =
                Plot { across: Across::Bytes, x: "bytes", y: "GB/s", factors, curves: &curves };
            let svg = plot.svg().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            for text in ["first &amp; &lt;last&gt;", "second", "GB/s", "64 KiB"] {
                assert!(svg.contains(text), "no {text} in {svg}");
            }
            assert!(svg.matches("<circle").count() >= 40);
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn one_point_is_enough_and_none_is_told() {
        let curves = [Curve { name: String::from("x"), points: vec![(1.0, 2.0)] }];
        for across in [Across::Bytes, Across::Count] {
            let plot = Plot { across, x: "", y: "", factors: false, curves: &curves };
            assert!(plot.svg().is_ok());
            assert!(Plot { curves: &[], ..plot }.svg().is_err());
        }
    }

    #[test]
    fn numbers_and_bytes_are_short() {
        let numbers = [0.0, 0.5, 0.0125, 1.0, 2.75, 12.34, 100.0, 123456.0, 1e-4, 1e-7];
        let texts = ["0", "0.5", "0.013", "1", "2.75", "12.3", "100", "123456", "0.0001", "1.0e-7"];
        assert_eq!(numbers.map(number), texts);
        assert_eq!([8, 1024, 4 << 20].map(bytes), ["8 B", "1 KiB", "4 MiB"]);
    }
}
