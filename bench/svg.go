package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// drawing builds an SVG picture. It has a white background, so that it is readable on a dark page.
type drawing struct {
	width, height float64
	body          strings.Builder
}

const (
	ink  = "#1f2328"
	grey = "#59636e"
	grid = "#e4e8ec"
)

func (d *drawing) add(format string, a ...any) { fmt.Fprintf(&d.body, format+"\n", a...) }

func (d *drawing) line(x1, y1, x2, y2 float64, colour string, width float64) {
	d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`, x1, y1, x2, y2, colour, width)
}

func (d *drawing) path(points []point, colour string, width float64) {
	var at []string
	for _, p := range points {
		at = append(at, fmt.Sprintf("%.1f,%.1f", p.x, p.y))
	}
	d.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f" stroke-linejoin="round"/>`, strings.Join(at, " "), colour, width)
}

func (d *drawing) dot(x, y, r float64, fill, stroke string) {
	d.add(`<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" stroke="%s" stroke-width="1.5"/>`, x, y, r, fill, stroke)
}

func (d *drawing) bar(x, y, width, height float64, colour string) {
	d.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x, y, width, height, colour)
}

// text writes s with its start, middle or end at x, y. A white outline separates it from lines behind
// it.
func (d *drawing) text(x, y float64, anchor, colour string, size float64, bold bool, s string) {
	weight := ""
	if bold {
		weight = ` font-weight="600"`
	}
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" stroke="#ffffff" stroke-width="3" paint-order="stroke" font-size="%.0f"%s>%s</text>`, x, y, anchor, colour, size, weight, html.EscapeString(s))
}

func (d *drawing) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif">
<rect width="%.0f" height="%.0f" rx="8" fill="#ffffff"/>
%s</svg>
`, d.width, d.height, d.width, d.height, d.width, d.height, d.body.String())
}

// textWidth estimates the width of s in this font size.
func textWidth(s string, size float64) float64 { return float64(len([]rune(s))) * size * 0.58 }

type point struct{ x, y float64 }

// axis maps values to positions in the picture.
type axis struct {
	low, high float64
	log       bool
	from, to  float64 // the positions of low and high
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, v = math.Log(low), math.Log(high), math.Log(v)
	}
	if high == low {
		return (a.from + a.to) / 2
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// decades returns a logarithmic axis for all values above 0. It starts and ends at a power of ten.
func decades(values []float64, from, to float64) axis {
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 {
		low, high = 1, 1
	}
	a := axis{math.Pow(10, math.Floor(math.Log10(low)+1e-9)), math.Pow(10, math.Ceil(math.Log10(high)-1e-9)), true, from, to}
	if a.low == a.high {
		a.high *= 10
	}
	return a
}

// ticks returns the powers of ten, or about five round numbers of a linear axis.
func (a axis) ticks() (at []float64) {
	if a.log {
		for v := a.low; v < a.high*1.01; v *= 10 {
			at = append(at, v)
		}
		return at
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/2)))
	for _, m := range []float64{1, 2, 5} {
		if (a.high-a.low)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for i := math.Ceil(a.low / step); i*step <= a.high*1.001; i++ {
		at = append(at, i*step)
	}
	return at
}

// whole formats a count, such as 1,024 or 100k.
func whole(v float64) string {
	if v < 10_000 {
		return thousands(int(v))
	}
	return short(v)
}

// short formats v with an SI prefix, such as 20k.
func short(v float64) string {
	for _, u := range []struct {
		value float64
		name  string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= u.value {
			return strconv.FormatFloat(v/u.value, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// lasting formats nanoseconds as a duration, such as 20 µs.
func lasting(ns float64) string {
	for _, u := range []struct {
		value float64
		name  string
	}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
		if ns >= u.value*0.9995 {
			return strconv.FormatFloat(ns/u.value, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(ns, 'g', 3, 64) + " ns"
}
