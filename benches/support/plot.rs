//! Plots for the documentation.

use std::fs;
use std::ops::Range;

use plotters::prelude::*;

use super::report::docs;

pub use plotters::prelude::SeriesLabelPosition as Place;

pub struct Axis {
    pub name: &'static str,
    /// What a place on the axis is called; a logarithmic axis is one of exponents.
    pub label: fn(f64) -> String,
}

pub type Line = (String, Vec<(f64, f64)>);

pub struct Plot<'a> {
    pub file: &'a str,
    pub title: &'a str,
    pub x: Axis,
    pub y: Axis,
    /// Where it hides nothing.
    pub legend: Place,
    pub lines: &'a [Line],
}

impl Plot<'_> {
    pub fn write(&self) {
        self.write_with(&[]);
    }

    /// With marks beside the lines, of each kind in a colour of its own.
    pub fn write_with(&self, marks: &[(&str, Vec<(f64, f64)>)]) {
        let path = docs().join("plots").join(self.file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        self.draw(&SVGBackend::new(&path, (800, 520)).into_drawing_area(), marks).unwrap();
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, plotters::coord::Shift>,
        marks: &[(&str, Vec<(f64, f64)>)],
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let (x, y) = (self.range(|point| point.0), self.range(|point| point.1));
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 20))
            .margin(12)
            .margin_right(40)
            .x_label_area_size(44)
            .y_label_area_size(68)
            .build_cartesian_2d(x, y.start.min(0.0)..y.end * 1.1)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_labels(10)
            .x_desc(self.x.name)
            .y_desc(self.y.name)
            .x_label_formatter(&|&at| (self.x.label)(at))
            .y_label_formatter(&|&at| (self.y.label)(at))
            .draw()?;
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            // Where points are many the line is enough.
            let dots = points.iter().filter(|_| points.len() < 100);
            chart.draw_series(dots.map(|&point| Circle::new(point, 3, color.filled())))?;
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        for (index, (name, points)) in (self.lines.len()..).zip(marks) {
            let color = Palette99::pick(index).to_rgba();
            chart
                .draw_series(points.iter().map(|&point| Circle::new(point, 4, color.filled())))?
                .label(*name)
                .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
        }
        chart
            .configure_series_labels()
            .position(self.legend.clone())
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()
    }

    fn range(&self, coordinate: impl Fn(&(f64, f64)) -> f64) -> Range<f64> {
        let all = self.lines.iter().flat_map(|line| &line.1).map(coordinate);
        let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        low..high
    }
}

pub fn plain(at: f64) -> String {
    format!("{at:.0}")
}
